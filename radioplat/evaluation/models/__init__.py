"""Whatever can be measured: checkpoints, ONNX files, engines, teachers."""
