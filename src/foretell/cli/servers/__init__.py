"""Cli: the commands that serve others: people with a page, agents with tools."""
