"""Graph: the peak memory of a graph, as PyTorch and the CUDA libraries allocate it."""
