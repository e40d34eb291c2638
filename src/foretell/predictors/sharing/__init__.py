"""Predictors: sharing: how much models that run on one GPU at the same time slow each other down."""
