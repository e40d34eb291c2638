"""frontends: what models of other frameworks look like, on disk and in memory; told by a look, never by trying."""

import re
import zipfile
from pathlib import Path
from typing import Any

from foretell.errors import ModelError

_HDF5 = b"\x89HDF\r\n\x1a\n"
_PROGRAM = b'{"base_code"'  # how Paddle 3 begins the JSON of a program
_IMPORT = re.compile(r"^\s*(?:import|from)\s+(torch|keras|tensorflow|paddle|jax|flax)\b", re.MULTILINE)
_IMPORTED = (({"keras", "tensorflow"}, "keras"), ({"paddle"}, "paddle"), ({"jax", "flax"}, "jax"))
_NAMED_OTHERWISE = (".onnx", ".pt2")  # who asks for these alone, as the web page does, must not start a converter
_MOST_TEXT = 1 << 20
_TF_FUNCTIONS = ("ConcreteFunction", "AtomicFunction", "WrappedFunction")


def recognise_foreign_object(source: Any, kinds: set[str]) -> str:
    """The front-end for an object; "" where it is of none of these frameworks. ``kinds``: module.Class of its bases."""
    if kinds & {"keras.Model", "tf_keras.Model"}:
        return "keras"
    if any(f"tensorflow.{name}" in kinds for name in _TF_FUNCTIONS):
        return "tensorflow"
    if "tensorflow.PolymorphicFunction" in kinds or "tensorflow.Function" in kinds:
        raise ModelError(
            "A tf.function has no fixed inputs. Give a concrete one: function.get_concrete_function(tf.TensorSpec(…))"
        )
    if "paddle.Layer" in kinds:
        return "paddle"
    if any(k.startswith(("jax.", "jaxlib.", "flax.")) for k in kinds) or _is_function(source):
        return "jax"
    return ""


def _is_function(source: Any) -> bool:
    return type(source).__name__ in ("function", "method", "partial")


def recognise_python_file(path: Path) -> str:
    """The front-end for ``net.py``, told by what it imports; "python", PyTorch's, where nothing else is."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            found = set(_IMPORT.findall(file.read(_MOST_TEXT)))
    except OSError:
        return "python"
    if "torch" in found:
        return "python"
    return next((front for names, front in _IMPORTED if found & names), "python")


def recognise_foreign_folder(path: Path) -> str:
    """The front-end for a folder; "" where it looks like none of these."""
    if (path / "saved_model.pb").is_file():
        return "tensorflow"
    return "paddle" if paddle_program(path) is not None else ""


def recognise_foreign_file(path: Path, start: bytes) -> str:
    """The front-end for a file; ``start`` is how it begins. "" where it looks like none of these."""
    if path.suffix in _NAMED_OTHERWISE:
        return ""
    if start.startswith(_HDF5):
        return "keras"
    if start.startswith(b"PK"):
        return "keras" if _is_keras(path) else ""
    if path.suffix == ".pdmodel" or (path.suffix == ".json" and _is_program(path, start)):
        return "paddle"
    if path.suffix == ".pdiparams":
        raise ModelError(f"{path.name} has weights alone. Give the program beside it: .pdmodel or .json.")
    if path.suffix in (".keras", ".h5", ".hdf5"):
        raise ModelError(f"{path.name} is no Keras model, or it is damaged.")
    if path.name == "saved_model.pb":
        raise ModelError(f"{path.name} is one file of a SavedModel. Give its folder: {path.parent}")
    return "tensorflow" if path.suffix == ".pb" and _is_graph_def(start) else ""


def paddle_program(path: Path) -> Path | None:
    """The one program of Paddle in a folder; raises where there are several."""
    found = sorted(path.glob("*.pdmodel"))
    if not found:
        found = [p for p in sorted(path.glob("*.json")) if p.with_suffix(".pdiparams").is_file()]
    if len(found) > 1:
        raise ModelError(f"{path} has several programs: {', '.join(p.name for p in found[:8])}. Give one of them.")
    return found[0] if found else None


def _is_program(path: Path, start: bytes) -> bool:
    return start.replace(b" ", b"").startswith(_PROGRAM) or path.with_suffix(".pdiparams").is_file()


def _is_keras(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return {"config.json", "model.weights.h5"} <= set(archive.namelist())
    except (zipfile.BadZipFile, OSError, NotImplementedError, ValueError, LookupError):
        return False


def _is_graph_def(start: bytes) -> bool:
    """A GraphDef begins with its first node: field 1, its length, and in it field 1, the node's name.

    ONNX begins with field 1 as a number (its version), so the two cannot be mixed up.
    """
    if not start.startswith(b"\x0a"):
        return False
    position = 1
    while position < len(start) and start[position] & 0x80:
        position += 1
    return start[position + 1 : position + 2] == b"\x0a"
