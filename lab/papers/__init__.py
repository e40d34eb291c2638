"""Lab: papers: their networks and baselines, fitted and judged on the same data as the product."""
