"""``radioplat evaluate``."""
