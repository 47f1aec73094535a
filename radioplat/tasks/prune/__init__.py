"""``radioplat prune``."""
