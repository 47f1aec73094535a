"""``radioplat tune``: many runs of one spec on Ray Tune."""
