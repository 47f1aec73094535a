"""Checks of one task each."""
