"""Profiling: zoos: where models to measure come from: timm, torchvision, Hugging Face, random networks."""
