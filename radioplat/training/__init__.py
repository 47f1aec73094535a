"""One rank of a run, from a checkpoint to its end."""
