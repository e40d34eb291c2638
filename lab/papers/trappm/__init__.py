"""Lab: TraPPM: pre-training on graphs without labels, and the arms that show what it is worth."""
