"""What a compiler made of a model: which operators each of its kernels runs."""
