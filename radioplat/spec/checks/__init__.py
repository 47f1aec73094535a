"""Contradictions that reading a spec finds."""
