"""Latency on a part of a GPU, from the latency on the whole of it."""
