"""Cli: one file a command; parse → workflow → print."""
