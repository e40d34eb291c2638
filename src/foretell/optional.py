"""Import a heavy library, or say which extra installs it.

>>> require("json", extra="json").dumps([1])
'[1]'
>>> require("no_such_library", extra="keras", purpose="Reading Keras models")
Traceback (most recent call last):
...
foretell.errors.MissingExtraError: Reading Keras models needs no_such_library: pip install 'foretell[keras]'
"""

import importlib
import importlib.util
import os
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from foretell.errors import MissingExtraError

# libraries that tell their makers how they are used, and write files for it, unless this is set before they load
_QUIET = {"onnxruntime": ("ORT_DISABLE_TELEMETRY", "1")}


def available(module: str) -> bool:
    """Whether ``module`` can be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def require(module: str, *, extra: str, purpose: str = "This") -> ModuleType:
    """Import ``module``; if absent, raise an error that names the extra."""
    if module in _QUIET:
        os.environ.setdefault(*_QUIET[module])
    if not available(module.partition(".")[0]):
        raise MissingExtraError(f"{purpose} needs {module.partition('.')[0]}: pip install 'foretell[{extra}]'")
    return importlib.import_module(module)


def versions(*modules: str, extra: str, purpose: str = "This") -> str:
    """The versions of libraries, without importing them; raises as `require` does where one is absent.

    >>> versions("numpy", extra="numpy").split()[0]
    'numpy'
    """
    for module in modules:
        if not available(module):
            raise MissingExtraError(f"{purpose} needs {module}: pip install 'foretell[{extra}]'")
    return " ".join(f"{module} {metadata.version(module)}" for module in modules)


def repair_torchvision() -> None:
    """Let torchvision import where its compiled operators do not fit this build of torch.

    A CUDA wheel of torchvision beside a CPU build of torch fails on import because ``torchvision::nms`` is missing;
    declaring the operator is enough for everything but detection heads.
    """
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return
    torch = require("torch", extra="torch")
    if hasattr(torch.ops.torchvision, "nms"):
        return
    for library in Path(spec.origin).parent.glob("_C*.so"):
        try:
            torch.ops.load_library(str(library))
        except (OSError, ImportError):
            continue
        return
    _declared.append(torch.library.Library("torchvision", "DEF"))
    for operator in ("nms", "qnms"):
        _declared[-1].define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


# A torch.library.Library withdraws its operators when it is collected.
_declared: list[Any] = []
