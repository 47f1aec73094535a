"""Decoding of image files, and reading their sizes from the first bytes."""
