"""frontends: someone's model → Graph; one file a framework."""
