"""Lab: chapter 7 of the thesis: a graph network that a small language model reads, and few measurements."""
