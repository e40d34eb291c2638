"""How much memory a graph needs at its peak, as PyTorch and CUDA hold it."""
