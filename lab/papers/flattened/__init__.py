"""Lab: latency and co-location from flattened graphs, after D. Mendoza and S. Wang (Stanford CS230)."""
