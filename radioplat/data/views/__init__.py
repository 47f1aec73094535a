"""Crops, augmentation, rendering of views."""
