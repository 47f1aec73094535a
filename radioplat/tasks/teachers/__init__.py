"""``radioplat teachers``: check teachers, and manage teacher pools that outlive a run."""
