"""A checked spec becomes a Run, before a worker starts; ``plan`` and the run share it."""
