"""Models that can be evaluated: checkpoints, ONNX files, engines, teachers."""
