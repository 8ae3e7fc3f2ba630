"""Models as ONNX graphs, traced and verified."""
