"""Guards: what may skip a step, pause a run or end it."""
