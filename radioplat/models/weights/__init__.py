"""Weight files: safe reading, and matching of names and shapes."""
