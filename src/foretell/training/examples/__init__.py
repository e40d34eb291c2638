"""Records become examples: graphs, linked kernels, samples, labels."""
