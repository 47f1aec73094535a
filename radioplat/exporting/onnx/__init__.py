"""ONNX export: tracing, precision conversion, comparison with torch."""
