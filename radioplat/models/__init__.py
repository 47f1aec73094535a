"""Students and detectors: building blocks, checkpoints, number formats."""
