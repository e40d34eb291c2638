"""Lab: judging: the papers' predictors beside the product's, on the same splits."""
