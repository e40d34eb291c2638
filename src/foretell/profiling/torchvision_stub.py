"""Profiling: import torchvision, also where its compiled operators do not fit the installed torch.

A CUDA wheel of torchvision on a CPU build of torch fails at import, because two detection operators are missing.
Declaring them is enough: no classifier calls them.
"""

from typing import Any

from foretell.optional import require

_declared: list[Any] = []


def import_torchvision() -> Any:
    """The torchvision module."""
    import sys

    torch = require("torch", extra="torch", purpose="Profiling torchvision's models")
    if "torchvision" in sys.modules:
        return sys.modules["torchvision"]
    if not torch.cuda.is_available() and torch.version.cuda is None and not _declared:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            try:
                library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            except RuntimeError:  # someone else in this process has declared it
                continue
        _declared.append(library)  # the declaration lives as long as this object
    return require("torchvision", extra="vision", purpose="Profiling torchvision's models")
