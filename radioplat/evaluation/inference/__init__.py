"""Features, classes and boxes of images without labels, from a checkpoint, an ONNX file or an engine."""
