"""Checks of teachers, losses and schemes."""
