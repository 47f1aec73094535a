"""Initialization of a student from pretrained weights."""
