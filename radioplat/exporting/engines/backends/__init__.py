"""Engine backends, one per file: TensorRT, TensorRT-RTX, onnxruntime, OpenVINO."""
