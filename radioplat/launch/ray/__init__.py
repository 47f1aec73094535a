"""A run on Ray Train: placement, monitoring, elastic world size, restarts."""
