"""``radioplat plan``: print what a run would do and need, and every problem that would refuse it."""
