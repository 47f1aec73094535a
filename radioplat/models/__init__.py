"""Students, their parts and their files."""
