"""Do students become good, by the platform's defaults? See `benchmarks/teach/__main__.py`."""
