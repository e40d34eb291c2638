"""Optional: imports an optional library, or raises an error that says which extra installs it.

>>> require("json", extra="data").dumps([1])
'[1]'
>>> require("no_such_library", extra="keras", purpose="Reading Keras models")
Traceback (most recent call last):
...
foretell.errors.MissingExtraError: Reading Keras models needs no_such_library: pip install 'foretell[keras]'
"""

import importlib
import importlib.util
import os
from pathlib import Path
from types import ModuleType
from typing import Any

from foretell.errors import MissingExtraError

# libraries that collect telemetry and write files for it, unless this variable is set before they are imported
_QUIET = {"onnxruntime": ("ORT_DISABLE_TELEMETRY", "1")}


def available(module: str) -> bool:
    """Whether ``module`` can be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # ValueError: a module without a spec, such as a stub in a test
        return False


def require(module: str, *, extra: str, purpose: str = "This") -> ModuleType:
    """Import ``module``. If it is missing, raise an error that names the extra which installs it.

    ``extra`` must be one of the extras in pyproject.toml.
    """
    if module in _QUIET:
        os.environ.setdefault(*_QUIET[module])
    if not available(module.partition(".")[0]):
        raise MissingExtraError(f"{purpose} needs {module.partition('.')[0]}: pip install 'foretell[{extra}]'")
    return importlib.import_module(module)


def versions(*modules: str, extra: str, purpose: str = "This") -> str:
    """Return the versions of libraries without importing them. A missing one raises the same error as in `require`.

    >>> versions("numpy", extra="data").split()[0]
    'numpy'
    """
    for module in modules:
        if not available(module):
            raise MissingExtraError(f"{purpose} needs {module}: pip install 'foretell[{extra}]'")
    return " ".join(f"{module} {installed_version(module)}" for module in modules)


def installed_version(library: str) -> str:
    """The version of an installed library, as ``importlib.metadata`` tells it.

    That module imports a parser of mails first, which takes as long as finding the version in the name of the folder
    that every installer leaves beside a package, ``onnx-1.21.0.dist-info``, takes a hundred times.
    """
    spec = importlib.util.find_spec(library)
    if spec is not None and spec.origin is not None:
        start = f"{library}-"
        folders = os.listdir(Path(spec.origin).parents[1])
        found = [name for name in folders if name.startswith(start) and name.endswith(".dist-info")]
        if len(found) == 1:
            return found[0].removeprefix(start).removesuffix(".dist-info")
    from importlib import metadata  # installed in another way, or twice

    return metadata.version(library)


def repair_torchvision() -> None:
    """Make torchvision importable even if its compiled operators do not fit the installed build of torch.

    With a CUDA wheel of torchvision and a CPU build of torch, ``import torchvision`` fails because ``torchvision::nms``
    is missing. Declaring the operator is enough for everything except detection heads.
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


# a torch.library.Library removes its operators when it is garbage-collected, so it is kept here
_declared: list[Any] = []
