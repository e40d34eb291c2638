"""What runs a step and times it: CUDA, the CPU, ONNX Runtime."""
