"""frontends: a function or module of the running program, written to a file for the process that converts it.

The file is a pickle, and reading one runs code. This one is made here, of the caller's own object, in a folder that
nobody else can open, and our own child alone reads it, by a fixed name. No path that a user gives is ever unpickled.
"""

import os
import sys
import sysconfig
import threading
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from foretell.optional import require

FILE = "given.pickle"
_registering = threading.Lock()  # what cloudpickle takes by value is told to the whole program


def write_object(source: Any, folder: Path, purpose: str, *, own: bool) -> dict[str, Any]:
    """Write the object into ``folder``; returns what its reader must be told.

    Functions of scripts and notebooks, lambdas and closures go as they are; what an installed or importable module has
    goes by name, because importing it does what else its objects need (classes are registered with JAX, for one).
    A module that the child would not find (a test's, one that was loaded from a path) goes as it is, too.

    Args:
        source: A function, or a module of Flax. It is not changed.
        folder: A private folder.
        purpose: What needs cloudpickle.
        own: Whether an environment of its own reads it: the caller's modules are then found by path alone.
    """
    cloudpickle: Any = require("cloudpickle", extra="jax", purpose=purpose)
    jax: Any = sys.modules.get("jax")
    with _registering, (folder / FILE).open("wb") as file:
        registered = cloudpickle.list_registry_pickle_by_value()
        lost = [module for module in _lost_modules(own) if module.__name__ not in registered]
        for module in lost:
            cloudpickle.register_pickle_by_value(module)
        try:
            _pickler(cloudpickle, jax)(file, protocol=5).dump(source)
        finally:
            for module in lost:
                cloudpickle.unregister_pickle_by_value(module)
    return {
        "python": list(sys.version_info[:2]),
        "search": [os.path.abspath(os.fsdecode(entry)) for entry in sys.path],
        "jax": jax.__version__ if jax is not None else None,
        "x64": bool(jax is not None and jax.config.jax_enable_x64),
    }


def _pickler(cloudpickle: Any, jax: Any) -> Any:
    """A pickler that knows JAX: its files depend as little as can be on the version that is installed."""
    names = _names()

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        """Writes arrays as NumPy's, what JAX and Flax have by its name, and functions with gradients of their own."""

        def reducer_override(self, found: Any) -> Any:
            """How an object is written."""
            if id(found) in names:
                return getattr, names[id(found)]
            if jax is None:
                return super().reducer_override(found)
            if isinstance(found, jax.Array):
                return _write_array(jax, found)
            if type(found) is jax.custom_vjp:
                return object.__new__, (jax.custom_vjp,), dict(vars(found))  # its constructor wants arguments
            return super().reducer_override(found)

    return Pickler


def _names() -> dict[int, tuple[ModuleType, str]]:
    """Functions that JAX and Flax have, and how they are called there; the public name where there is one.

    Many are wrapped, and would be taken apart: ``jax.nn.relu`` has a gradient of its own, others are caches.
    """
    names = sorted((n for n in list(sys.modules) if _is_of_jax(n)), key=lambda n: "._" not in n)  # the last one counts
    return {
        id(value): (sys.modules[name], key)
        for name in names
        for key, value in list(vars(sys.modules[name]).items())
        if callable(value) and not isinstance(value, type) and _is_of_jax(getattr(value, "__module__", None))
    }


def _is_of_jax(module: str | None) -> bool:
    return isinstance(module, str) and module.partition(".")[0] in ("jax", "jaxlib", "flax")


def _write_array(jax: Any, array: Any) -> Any:
    """How an array is written; JAX's own way is private to its version and holds all weights in memory once more."""
    import numpy as np

    if jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key):
        rebuild = partial(jax.random.wrap_key_data, impl=str(jax.random.key_impl(array)))
        return rebuild, (np.asarray(jax.random.key_data(array)),)
    return NotImplemented if array.weak_type else (jax.numpy.asarray, (np.asarray(array),))


def _lost_modules(own: bool) -> Iterable[ModuleType]:
    """Modules of the running program that a new process with its search path would not find, or find another."""
    places = ("stdlib", "platstdlib", "purelib", "platlib")
    installed = tuple(f"{sysconfig.get_path(place)}{os.sep}" for place in places)
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name == "__main__" or getattr(module, "__name__", None) != name or not isinstance(file, str):
            continue
        if file.startswith(installed) or not os.path.isfile(file):
            continue
        spec = _find(name, own)
        if spec is None or spec.origin is None or os.path.abspath(spec.origin) != os.path.abspath(file):
            yield module


def _find(name: str, own: bool) -> ModuleSpec | None:
    """What a new process would import under a name."""
    parent, path = name.rpartition(".")[0], None
    if parent:
        above = _find(parent, own)
        if above is None or above.submodule_search_locations is None:
            return None
        path = list(above.submodule_search_locations)
    for finder in (PathFinder,) if own else sys.meta_path:
        with suppress(AttributeError, ImportError, ValueError):  # a finder of anyone's
            spec = finder.find_spec(name, path)
            if spec is not None:
                return spec
    return None
