"""Measurements: ``python -m benchmarks.<name>`` from the root; the last line on stdout is one JSON object."""
