"""Quantized ONNX: graphs with QuantizeLinear and DequantizeLinear (Q/DQ), their linter, ranges and caches."""
