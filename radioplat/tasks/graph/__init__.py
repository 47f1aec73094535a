"""Nodes that start from one another: order, fingerprints and schedule; the mechanism of `compress` and `pipeline`."""
