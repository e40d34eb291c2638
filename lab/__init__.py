"""Lab: networks and baselines of papers, campaigns and comparisons; not part of the wheel."""
