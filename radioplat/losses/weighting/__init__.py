"""How teachers and positions are weighed: balance, teacher dropping, IoU masks."""
