"""Frontends: PyTorch: modules, timm, torchvision, .pt2 and TorchScript archives, Python files."""
