"""Starts of a run's workers: logs, causes, goodput."""
