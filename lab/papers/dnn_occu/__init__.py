"""Lab: DNN-occu: the network of a paper that predicts GPU occupancy, and the baselines that it was compared with."""
