"""Profiling: the kinds of operators that a bench draws, one file a subject."""
