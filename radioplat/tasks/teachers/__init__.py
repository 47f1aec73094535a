"""``radioplat teachers``: check them, and pools that outlive a run."""
