"""Which operators a compiler runs as one kernel."""
