"""Lab: parts, steps and encoders of served language models, measured on a GPU."""
