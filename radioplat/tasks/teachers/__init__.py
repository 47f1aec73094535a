"""``radioplat teachers``: check teachers, and manage pools that outlive a run."""
