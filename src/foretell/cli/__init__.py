"""Cli: one file for each command. A command parses its options, calls a workflow and prints the result."""
