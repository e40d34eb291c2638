"""Frontends: runs in the child process: imports ``net.py`` and calls its function ``build``."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Refuse = Callable[[str, str], Exception]


def build(task: dict[str, Any], refuse: Refuse) -> tuple[Any, Any]:
    """Return the model that the function builds, and its example inputs or None."""
    path = Path(task["path"])
    if not task["trust"]:
        raise refuse("untrusted", f"reading it runs the code in {path.name}. If you trust it, add --trust.")
    spec = importlib.util.spec_from_file_location(f"foretell_user_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise refuse("model", f"cannot read {path.name}.")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        function = getattr(module, task["function"], None)
        if not callable(function):
            raise refuse("model", f"{path.name} has no function {task['function']!r}.")
        built = function()
    except (Exception, SystemExit) as error:
        if hasattr(error, "kind"):  # a refusal of our own
            raise
        text = " ".join(str(error).split())[:200]
        raise refuse("model", f"{path.name} raised {type(error).__name__}: {text}") from error
    return built if isinstance(built, tuple) and len(built) == 2 else (built, None)
