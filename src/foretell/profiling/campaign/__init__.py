"""Profiling: campaigns, which measure what a plan asks for and can be killed and resumed at any moment."""
