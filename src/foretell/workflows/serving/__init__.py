"""Workflows: serving: language models under a stream of requests."""
