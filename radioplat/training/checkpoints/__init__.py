"""Checkpoints: saving, restoring, the copy in a second location, retention."""
