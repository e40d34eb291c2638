"""DIPPM, TraPPM, NNLQP, BRP-NAS and their kin: one graph network with switches."""
