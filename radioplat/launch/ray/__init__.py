"""A run on Ray Train: placed, watched, resized, started again."""
