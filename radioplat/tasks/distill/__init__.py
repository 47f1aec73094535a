"""``radioplat distill`` and ``train``."""
