"""foretell: tells how a deep-learning model will run before anyone runs it."""
