"""Cli: the commands that say what to do about a model."""
