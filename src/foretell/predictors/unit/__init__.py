"""The default predictor: a network on the units of work of a model, then trees on the whole."""
