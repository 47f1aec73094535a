"""Checks for contradictions between spec fields."""
