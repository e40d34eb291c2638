"""Training: examples: records become graphs, linked kernels, samples and labels."""
