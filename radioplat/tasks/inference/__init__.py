"""``radioplat inference``."""
