"""Files of jobs and clusters, traces, and tables of measured pairs."""
