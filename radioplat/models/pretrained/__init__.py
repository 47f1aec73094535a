"""Pretrained weights of a student."""
