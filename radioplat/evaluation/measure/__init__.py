"""Passes over the images that compute features and update the metrics; the registry of metrics."""
