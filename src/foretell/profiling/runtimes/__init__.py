"""Profiling: runtimes, which run a step and time it: CUDA, the CPU, ONNX Runtime."""
