"""Lab: chapter 3 of the thesis: the operators of temperature downscaling, tensor cores, and what the network costs."""
