"""Frontends: rewrites the graphs of converted models into the form that PyTorch models have."""
