"""Objects on their way to another process: what goes by name, what as it is; without JAX installed."""

import importlib.util
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from foretell.frontends.converted.jax_objects import write_object

cloudpickle = pytest.importorskip("cloudpickle")
READ = """
import json, pickle, sys
folder, search = sys.argv[1], json.loads(sys.argv[2])
sys.path[:] = search
function = pickle.load(open(folder + "/given.pickle", "rb"))
print(function(5))
"""
FACTOR = 3


def times_factor(x: int) -> int:
    return x * FACTOR


def load(path: Path, text: str, name: str, *, known: bool = True) -> ModuleType:
    """A module from a path, which the search path does not lead to."""
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if known:
        sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def elsewhere(source: Callable[[int], Any], folder: Path, *, own: bool = False) -> str:
    """What a function says in a new process."""
    description = write_object(source, folder, "This", own=own)
    command = [sys.executable, "-I", "-c", READ, str(folder), json.dumps(description["search"])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-500:]
    return done.stdout.strip()


@pytest.mark.parametrize("own", [False, True])
def test_functions_of_modules_that_cannot_be_imported_go_as_they_are(tmp_path: Path, own: bool) -> None:
    loaded = load(tmp_path / "loose.py", "factor = 4\ndef f(x): return g(x)\ndef g(x): return factor * x", "loose_one")
    unknown = load(tmp_path / "free.py", "factor = 6\ndef f(x): return factor * x", "free_one", known=False)
    outside, power = 7, partial(pow, 2)
    assert elsewhere(lambda x: (loaded.f(x), unknown.f(x), times_factor(x), outside, power(x)), tmp_path, own=own) == (
        "(20, 30, 15, 7, 32)"
    )
    assert not cloudpickle.list_registry_pickle_by_value()


def test_modules_that_can_be_imported_go_by_name(tmp_path: Path) -> None:
    """Importing them does what else they need."""
    sys.path.insert(0, str(tmp_path))
    (tmp_path / "found_one.py").write_text("def f(x): return 'of the body'")
    assert elsewhere(importlib.import_module("found_one").f, tmp_path) == "of the body"
    written = (tmp_path / "given.pickle").read_bytes()
    assert b"found_one" in written
    assert b"of the body" not in written


def test_a_name_that_leads_to_another_file_is_not_used(tmp_path: Path) -> None:
    sys.path.insert(0, str(tmp_path))
    (tmp_path / "twice_named.py").write_text("def f(x): return 'wrong'")
    (tmp_path / "deep").mkdir()
    mine = load(tmp_path / "deep/any.py", "def f(x): return 'right'", "twice_named")
    assert elsewhere(mine.f, tmp_path) == "right"


def test_what_the_caller_registered_stays_registered(tmp_path: Path) -> None:
    module = load(tmp_path / "loose.py", "def f(x): return x", "loose_two")
    cloudpickle.register_pickle_by_value(module)
    try:
        write_object(module.f, tmp_path, "This", own=False)
        assert cloudpickle.list_registry_pickle_by_value() == {"loose_two"}
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def test_what_cannot_be_written_raises_and_leaves_nothing_registered(tmp_path: Path) -> None:
    lock = threading.Lock()
    load(tmp_path / "loose.py", "", "loose_three")
    with pytest.raises(TypeError, match="lock"):
        write_object(lambda x: lock, tmp_path, "This", own=False)
    assert not cloudpickle.list_registry_pickle_by_value()


class Array:
    """Looks like JAX's own, and cannot be pickled by itself."""

    dtype, weak_type = "float32", False

    def __init__(self, values: list[float]) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array(self.values, np.float32)

    def __reduce__(self) -> Any:
        raise TypeError("private")


class Wrapped:
    """Looks like a function that JAX has wrapped."""

    def __call__(self, x: object) -> str:
        return "wrapped"

    def __reduce__(self) -> Any:
        raise TypeError("private")


Wrapped.__module__ = "jax._src.nn"


def test_what_belongs_to_jax_goes_in_a_way_that_versions_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that plays JAX: its arrays and functions refuse to be pickled as they are."""
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax/__init__.py").write_text("")
    (tmp_path / "jax/numpy.py").write_text("def asarray(x): return x\ndef issubdtype(a, b): return a == b\n")
    (tmp_path / "jax/nn.py").write_text("def relu(x): return 'found by name'")
    sys.path.insert(0, str(tmp_path))
    jax: Any = importlib.import_module("jax")
    jax.__version__, jax.Array, jax.custom_vjp = "1.2", Array, type("custom_vjp", (), {})
    jax.config, jax.dtypes = SimpleNamespace(jax_enable_x64=True), SimpleNamespace(prng_key="key")
    jax.numpy = importlib.import_module("jax.numpy")
    public = importlib.import_module("jax.nn")
    private = ModuleType("jax._src.nn")
    monkeypatch.setitem(sys.modules, "jax._src.nn", private)
    monkeypatch.setattr(public, "relu", Wrapped())
    monkeypatch.setattr(private, "anything", public.relu, raising=False)
    relu, weights = public.relu, Array([1.0, 2.0])
    description = write_object(relu, tmp_path, "This", own=True)
    assert (description["jax"], description["x64"], description["python"]) == ("1.2", True, list(sys.version_info[:2]))
    assert elsewhere(lambda x: (relu(x), float(weights.sum())), tmp_path) == "('found by name', 3.0)"  # type: ignore[attr-defined]
