"""Cli: the commands that take a model."""
