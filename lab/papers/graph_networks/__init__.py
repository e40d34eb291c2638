"""Lab: graph networks: DIPPM, TraPPM, NNLQP, BRP-NAS and relatives as one network with switches."""
