"""Layers with fake quantization."""
