"""A student leaves: ONNX, TensorRT engines."""
