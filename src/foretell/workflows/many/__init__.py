"""Workflows: many predictions at once."""
