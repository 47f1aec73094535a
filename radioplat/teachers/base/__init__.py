"""A frozen teacher, and its description without weights."""
