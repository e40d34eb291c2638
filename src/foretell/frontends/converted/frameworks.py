"""Frontends: recognises models of Keras, TensorFlow, PaddlePaddle and JAX, without importing these frameworks.

Files are recognised by how they begin, folders by what is in them, objects by the names of their classes.
"""

import re
import zipfile
from pathlib import Path
from typing import Any

from foretell.errors import ModelError

_HDF5 = b"\x89HDF\r\n\x1a\n"
_PROGRAM = b'{"base_code"'  # the first bytes of a Paddle 3 program in JSON
_IMPORT = re.compile(r"^\s*(?:import|from)\s+(torch|keras|tensorflow|paddle|jax|flax)\b", re.MULTILINE)
_IMPORTED = (({"keras", "tensorflow"}, "keras"), ({"paddle"}, "paddle"), ({"jax", "flax"}, "jax"))
# files with these suffixes never start a converter: the web page accepts only them, and relies on that
_OTHER_SUFFIXES = (".onnx", ".pt2")
_MAX_TEXT = 1 << 20
_TF_FUNCTIONS = ("ConcreteFunction", "AtomicFunction", "WrappedFunction")


def recognise_foreign_object(source: Any, kinds: set[str]) -> str:
    """Return the front-end for an object; "" if it belongs to none of these frameworks.

    ``kinds`` are the classes of the object as "package.Class".
    """
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
    """Return the front-end for ``net.py`` by what the file imports; "python", which is PyTorch's, by default."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            imported = set(_IMPORT.findall(file.read(_MAX_TEXT)))
    except OSError:
        return "python"
    if "torch" in imported:
        return "python"
    return next((frontend for names, frontend in _IMPORTED if imported & names), "python")


def recognise_foreign_folder(path: Path) -> str:
    """Return the front-end for a folder; "" if it belongs to none of these frameworks."""
    if (path / "saved_model.pb").is_file():
        return "tensorflow"
    return "paddle" if paddle_program(path) is not None else ""


def recognise_foreign_file(path: Path, start: bytes) -> str:
    """Return the front-end for a file with these first bytes; "" if it belongs to none of these frameworks."""
    if path.suffix in _OTHER_SUFFIXES:
        return ""
    if start.startswith(_HDF5):
        return "keras"
    if start.startswith(b"PK"):
        return "keras" if _is_keras(path) else ""
    if path.suffix == ".pdmodel" or (path.suffix == ".json" and _is_program(path, start)):
        return "paddle"
    if path.suffix == ".pdiparams":
        raise ModelError(f"{path.name} contains only weights. Give the program beside it: .pdmodel or .json.")
    if path.suffix in (".keras", ".h5", ".hdf5"):
        raise ModelError(f"{path.name} is not a Keras model, or it is damaged.")
    if path.name == "saved_model.pb":
        raise ModelError(f"{path.name} is one file of a SavedModel. Give its folder: {path.parent}")
    return "tensorflow" if path.suffix == ".pb" and _is_graph_def(start) else ""


def paddle_program(path: Path) -> Path | None:
    """Return the Paddle program in a folder, or None; raise if there are several."""
    programs = sorted(path.glob("*.pdmodel"))
    if not programs:
        programs = [p for p in sorted(path.glob("*.json")) if p.with_suffix(".pdiparams").is_file()]
    if len(programs) > 1:
        raise ModelError(f"{path} has several programs: {', '.join(p.name for p in programs[:8])}. Give one of them.")
    return programs[0] if programs else None


def _is_program(path: Path, start: bytes) -> bool:
    return start.replace(b" ", b"").startswith(_PROGRAM) or path.with_suffix(".pdiparams").is_file()


def _is_keras(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return {"config.json", "model.weights.h5"} <= set(archive.namelist())
    except (zipfile.BadZipFile, OSError, NotImplementedError, ValueError, LookupError):
        return False


def _is_graph_def(start: bytes) -> bool:
    """Whether a file begins like a GraphDef: field 1 (a node), its length, and in it field 1 (the node's name).

    An ONNX file begins with field 1 as a number (its version), so the two cannot be confused.
    """
    if not start.startswith(b"\x0a"):
        return False
    position = 1
    while position < len(start) and start[position] & 0x80:  # the length is a varint: skip its bytes
        position += 1
    return start[position + 1 : position + 2] == b"\x0a"
