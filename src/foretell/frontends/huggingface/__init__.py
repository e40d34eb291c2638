"""Frontends: Hugging Face models, built from their configuration, without weights and without downloading a model."""
