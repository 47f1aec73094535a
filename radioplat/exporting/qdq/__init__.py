"""Quantized ONNX graphs: QuantizeLinear and DequantizeLinear pairs, their linter and ranges."""
