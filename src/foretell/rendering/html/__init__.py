"""Pages as HTML text that needs nothing else."""
