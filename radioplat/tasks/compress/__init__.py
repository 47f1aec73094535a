"""``radioplat compress``: a chain of stages, each of which runs another task."""
