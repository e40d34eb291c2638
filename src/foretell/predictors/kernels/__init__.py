"""Predictors: kernels: which class of kernel each unit of work runs."""
