"""Lab: a few measurements of a device, judged."""
