"""Lab: LILOU: its graph partitioner and its sub-graph analyser."""
