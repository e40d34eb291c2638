"""Predictors: occupancy: how full the SMs are, from the units of a workload."""
