"""A student leaves: ONNX, Q/DQ, engines, weights in the layouts of others."""
