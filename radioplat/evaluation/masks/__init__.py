"""Decoders for segmentation and change on frozen maps."""
