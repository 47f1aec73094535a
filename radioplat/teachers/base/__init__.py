"""A frozen teacher, and what is known of it before its weights are loaded."""
