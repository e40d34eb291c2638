"""Training: from records to fitted predictors, and how they are judged."""
