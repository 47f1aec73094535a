"""Export of models: ONNX, Q/DQ graphs, engines, weights in the formats of other libraries."""
