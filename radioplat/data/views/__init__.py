"""Crops and augmentations, and the rendering of image views for students and teachers."""
