"""Frontends: Keras, TensorFlow, PaddlePaddle and JAX models, which a separate process converts to ONNX."""
