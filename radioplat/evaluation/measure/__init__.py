"""The passes over images that feed the metrics."""
