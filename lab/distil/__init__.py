"""Lab: distil: one small network learns what the networks of several fits say of units together."""
