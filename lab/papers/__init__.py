"""Networks and baselines of papers, fitted and judged on the same data as the product."""
