"""Transforms that make models smaller; independent of training."""
