"""Attempts of a run (starts of its workers): logs, causes of failure, goodput."""
