"""Front-end for ONNX files: checks, inputs, shapes, nodes, control flow."""
