"""``radioplat plan``: what a run would do, need and refuse."""
