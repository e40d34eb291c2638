"""Predictors: unit: the time of each unit of work, and of the workload that they make up."""
