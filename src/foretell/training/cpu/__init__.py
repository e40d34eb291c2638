"""Training: CPU: ONNX Runtime and two threads."""
