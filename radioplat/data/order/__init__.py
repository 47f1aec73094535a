"""Which sample is the n-th of the run, and which rank gets it."""
