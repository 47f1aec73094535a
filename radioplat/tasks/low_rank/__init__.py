"""``radioplat low_rank``."""
