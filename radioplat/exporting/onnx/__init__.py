"""Tracing, retyping and comparing ONNX files."""
