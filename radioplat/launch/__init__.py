"""One run, seen from the process that started it."""
