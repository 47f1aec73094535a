"""Build the Run from a checked spec before workers start; shared by ``plan`` and real starts."""
