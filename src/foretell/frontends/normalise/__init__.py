"""Converted models are rewritten into the form that PyTorch models have."""
