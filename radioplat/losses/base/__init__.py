"""Common parts of losses: criteria, resampling to a common grid, reductions."""
