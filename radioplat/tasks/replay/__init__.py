"""`radioplat replay`: compute one step of a run again, and look at it."""
