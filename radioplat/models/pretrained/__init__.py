"""The weights that a student starts from."""
