"""Predictors: a CPU that runs a model by ONNX Runtime, or on two threads: its own room, beside eager PyTorch on one."""
