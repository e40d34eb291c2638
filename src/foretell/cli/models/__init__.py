"""Commands that take a model."""
