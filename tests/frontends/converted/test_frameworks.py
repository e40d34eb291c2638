"""Models of other frameworks are told by a look."""

import struct
from pathlib import Path

import pytest

from converted_models import keras_file
from foretell.errors import ModelError
from foretell.frontends.sources import recognise
from foretell.testing import tiny_onnx

GRAPH_DEF = b"\x0a\x12\x0a\x05image\x12\x0bPlaceholder"  # one node: its name, its operator


@pytest.mark.parametrize(
    ("files", "path_name", "expected"),
    [
        ({"m.h5": b"\x89HDF\r\n\x1a\n" + bytes(64)}, "m.h5", "keras"),
        ({"saved/saved_model.pb": b"x", "saved/variables/v.index": b""}, "saved", "tensorflow"),
        ({"saved/saved_model.pb": b"x", "saved/config.json": b"{}"}, "saved", "tensorflow"),
        ({"frozen.pb": GRAPH_DEF}, "frozen.pb", "tensorflow"),
        ({"net.json": b'{"base_code": {"magic": "pir"}}'}, "net.json", "paddle"),
        ({"net.json": b"{}", "net.pdiparams": b""}, "net.json", "paddle"),
        ({"d/net.json": b"{}", "d/net.pdiparams": b""}, "d", "paddle"),
        ({"d/net.pdmodel": b"x", "d/net.pdiparams": b""}, "d", "paddle"),
        ({"net.pdmodel": b"x"}, "net.pdmodel", "paddle"),
        ({"config.json": b"{}"}, "config.json", "hf"),
        ({"net.pb": tiny_onnx().SerializeToString()}, "net.pb", "onnx"),
    ],
)
def test_files_and_folders(tmp_path: Path, files: dict[str, bytes], path_name: str, expected: str) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    assert recognise(str(tmp_path / path_name)) == expected


def test_a_keras_archive_is_recognised_by_its_contents(tmp_path: Path) -> None:
    assert recognise(str(keras_file(tmp_path / "any.zip", {}))) == "keras"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("m.keras", b"nonsense", "is not a Keras model"),
        ("m.h5", b"nonsense", "is not a Keras model"),
        ("m.keras", b"PK\x03\x04nonsense", "zip file without a model"),
        ("net.pdiparams", b"x", "contains only weights"),
        ("saved_model.pb", b"x", "Give its folder"),
    ],
)
def test_files_that_only_look_like_models_are_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match=message):
        recognise(str(tmp_path / name))


def test_a_converter_starts_only_if_the_suffix_fits(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"\x89HDF\r\n\x1a\n")
    assert recognise(str(tmp_path / "m.onnx")) == "onnx"
    with pytest.raises(ModelError, match="without a model"):
        recognise(str(keras_file(tmp_path / "m.pt2", {})))


def test_several_programs_in_a_folder_are_named(tmp_path: Path) -> None:
    for name in ("a.pdmodel", "b.pdmodel"):
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(ModelError, match=r"a\.pdmodel, b\.pdmodel"):
        recognise(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import torch\nimport jax", "python"),
        ("from flax import nnx", "jax"),
        ("import numpy\n\ndef build():\n    import paddle.nn as nn", "paddle"),
        ("from keras import layers", "keras"),
        ("import tensorflow as tf", "keras"),
        ("x = 'import jax'", "python"),
        ("import jaxtyping", "python"),
    ],
)
def test_python_files_are_recognised_by_their_imports(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "net.py").write_text(text)
    assert recognise(f"{tmp_path / 'net.py'}:build") == expected


def stand_in(module: str, name: str, *, base: str = "") -> object:
    """An object of a class that looks like a framework's."""
    above = type(base, (), {"__module__": module}) if base else object
    return type(name, (above,), {"__module__": "user_code" if base else module})()


def test_objects_are_recognised_by_their_classes() -> None:
    assert recognise(stand_in("keras.src.models.model", "Mine", base="Model")) == "keras"
    assert recognise(stand_in("paddle.nn.layer.layers", "Mine", base="Layer")) == "paddle"
    assert recognise(stand_in("flax.nnx.module", "Mine", base="Module")) == "jax"
    assert recognise(stand_in("flax.nnx.transforms.compilation", "JitWrapped")) == "jax"
    assert recognise(stand_in("tensorflow.python.eager.concrete_function", "ConcreteFunction")) == "tensorflow"
    assert recognise(lambda x: x) == "jax"
    with pytest.raises(ModelError, match="get_concrete_function"):
        recognise(stand_in("tensorflow.python.eager.polymorphic_function", "Function"))
    with pytest.raises(ModelError, match="Cannot read a model from Model"):
        recognise(stand_in("elsewhere", "Model"))


def test_lengths_of_any_size_before_the_first_node(tmp_path: Path) -> None:
    (tmp_path / "long.pb").write_bytes(b"\x0a\x80\x02\x0a" + struct.pack("64x"))
    assert recognise(str(tmp_path / "long.pb")) == "tensorflow"
