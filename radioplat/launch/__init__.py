"""Start of a run and supervision of it from the process that started it."""
