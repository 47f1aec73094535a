"""Common parts of losses: criteria, the common grid, reductions."""
