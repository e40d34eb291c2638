"""Workflows: what would make a model faster, smaller or cheaper."""
