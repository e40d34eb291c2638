"""Latency under torch.compile."""
