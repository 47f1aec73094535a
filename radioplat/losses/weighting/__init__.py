"""Weights of teachers and positions: balance, teacher dropping, IoU masks."""
