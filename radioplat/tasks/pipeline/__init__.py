"""`radioplat pipeline`: a graph of runs and tasks, in which a student may be another's teacher or start."""
