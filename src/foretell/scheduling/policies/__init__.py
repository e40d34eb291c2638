"""Policies: who starts where, and when."""
