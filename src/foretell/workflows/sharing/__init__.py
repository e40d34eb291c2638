"""Jobs that share GPUs."""
