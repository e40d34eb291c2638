"""Frontends: language models of known families, written straight from their configuration, without torch."""
