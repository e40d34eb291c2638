"""Frontends: ONNX files: checks, inputs, shapes, nodes, control flow."""
