"""Training on one rank, from a checkpoint to the end of the run."""
