"""Students made smaller: transforms of models that know no training loop."""
