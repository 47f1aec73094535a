"""Students made smaller: transforms of modules, which know no training loop."""
