"""Measurement of target normalization during a run."""
