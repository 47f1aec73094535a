"""One file a backend: TensorRT, TensorRT-RTX, onnxruntime."""
