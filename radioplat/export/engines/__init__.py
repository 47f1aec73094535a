"""Engines: an ONNX file built for a GPU or a CPU, one file a backend, what was built written down beside it."""
