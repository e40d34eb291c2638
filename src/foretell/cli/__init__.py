"""cli: one file a command; parse → workflow → print."""
