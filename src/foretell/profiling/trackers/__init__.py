"""What is read while a step runs: kernels, hardware counters, the driver."""
