"""Weights from other places: fetched with their hashes pinned, and students published."""
