"""Checks of the spec sections of single tasks."""
