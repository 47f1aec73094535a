"""Pruning: removal of channels, attention heads and blocks; zeros in single weights."""
