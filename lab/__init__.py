"""The laboratory: networks and baselines of papers, campaigns and comparisons. It is not part of the wheel."""
