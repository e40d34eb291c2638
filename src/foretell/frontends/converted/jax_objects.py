"""Frontends: writes a JAX function or Flax module to a file for the child process that converts it.

The file is a pickle, and reading a pickle runs code. This one is made here from the caller's own object, in a folder
that no other user can open, and only our own child reads it, under a fixed name. A path that a user gives is never
unpickled.
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
_registering = threading.Lock()  # cloudpickle's registry of modules to pickle by value is global


def write_object(source: Any, folder: Path, purpose: str, *, own: bool) -> dict[str, Any]:
    """Write the object into ``folder``; returns what the child must know to read it.

    Functions of scripts and notebooks, lambdas and closures are pickled by value. Objects of an installed or importable
    module are pickled by name, because importing the module also does what its objects need, such as registering
    classes with JAX. A module that the child would not find (one of a test, or loaded from a path) is pickled by value.

    Args:
        source: A function, or a module of Flax. It is not changed.
        folder: A private folder.
        purpose: What cloudpickle is needed for.
        own: Whether a separate environment reads it, which finds the caller's modules only by path.
    """
    cloudpickle: Any = require("cloudpickle", extra="jax", purpose=purpose)
    jax: Any = sys.modules.get("jax")
    with _registering, (folder / FILE).open("wb") as file:
        registered = cloudpickle.list_registry_pickle_by_value()
        by_value = [module for module in _unimportable_modules(own) if module.__name__ not in registered]
        for module in by_value:
            cloudpickle.register_pickle_by_value(module)
        try:
            _pickler(cloudpickle, jax)(file, protocol=5).dump(source)
        finally:
            for module in by_value:
                cloudpickle.unregister_pickle_by_value(module)
    return {
        "python": list(sys.version_info[:2]),
        "search": [os.path.abspath(os.fsdecode(entry)) for entry in sys.path],
        "jax": jax.__version__ if jax is not None else None,
        "x64": bool(jax is not None and jax.config.jax_enable_x64),
    }


def _pickler(cloudpickle: Any, jax: Any) -> Any:
    """A pickler for objects of JAX whose files depend as little as possible on the installed version."""
    names = _names()

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        """Writes arrays as NumPy arrays, functions of JAX and Flax by name, and functions with custom gradients."""

        def reducer_override(self, obj: Any) -> Any:
            """Return how an object is pickled."""
            if id(obj) in names:
                return getattr, names[id(obj)]
            if jax is None:
                return super().reducer_override(obj)
            if isinstance(obj, jax.Array):
                return _write_array(jax, obj)
            if type(obj) is jax.custom_vjp:
                return object.__new__, (jax.custom_vjp,), dict(vars(obj))  # its constructor needs arguments
            return super().reducer_override(obj)

    return Pickler


def _names() -> dict[int, tuple[ModuleType, str]]:
    """The functions of JAX and Flax by their id: (module, name), with the public name if there is one.

    Many of them are wrapped, and cloudpickle would take them apart: ``jax.nn.relu`` has a custom gradient, others are
    caches.
    """
    # private modules first: in the dictionary below, the last name of a function wins
    names = sorted((n for n in list(sys.modules) if _is_of_jax(n)), key=lambda n: "._" not in n)
    return {
        id(value): (sys.modules[name], key)
        for name in names
        for key, value in list(vars(sys.modules[name]).items())
        if callable(value) and not isinstance(value, type) and _is_of_jax(getattr(value, "__module__", None))
    }


def _is_of_jax(module: str | None) -> bool:
    return isinstance(module, str) and module.partition(".")[0] in ("jax", "jaxlib", "flax")


def _write_array(jax: Any, array: Any) -> Any:
    """Return how an array is pickled. JAX's own way depends on its version and copies all weights in memory."""
    import numpy as np

    # random keys are no plain numbers; their data and the name of their generator are
    if jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key):
        rebuild = partial(jax.random.wrap_key_data, impl=str(jax.random.key_impl(array)))
        return rebuild, (np.asarray(jax.random.key_data(array)),)
    return NotImplemented if array.weak_type else (jax.numpy.asarray, (np.asarray(array),))


def _unimportable_modules(own: bool) -> Iterable[ModuleType]:
    """Modules of the running program that a new process with the same search path would not find, or not the same."""
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
    """The module that a new process would import under a name."""
    parent, path = name.rpartition(".")[0], None
    if parent:
        above = _find(parent, own)
        if above is None or above.submodule_search_locations is None:
            return None
        path = list(above.submodule_search_locations)
    for finder in (PathFinder,) if own else sys.meta_path:
        with suppress(AttributeError, ImportError, ValueError):  # any library can install a finder, and it may fail
            spec = finder.find_spec(name, path)
            if spec is not None:
                return spec
    return None
