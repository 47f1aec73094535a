"""Guards: conditions that skip a step, pause a run or end it."""
