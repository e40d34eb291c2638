"""Front-ends for Keras, TensorFlow, PaddlePaddle and JAX: converted to ONNX in a process of its own."""
