"""What losses share: criteria, the common grid, reductions."""
