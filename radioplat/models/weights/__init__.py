"""Weight files: reading them, and matching names and shapes."""
