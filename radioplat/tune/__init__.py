"""``radioplat tune``: many runs of one spec, each with other values, on Ray Tune."""
