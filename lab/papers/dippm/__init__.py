"""Lab: DIPPM as its paper fits it: arms, splits, curves and the rule for MIG profiles."""
