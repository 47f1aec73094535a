"""``radioplat compress``: a chain of stages, each a task of its own."""
