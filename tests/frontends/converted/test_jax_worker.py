"""Functions of JAX: their inputs, with the batch left open; without JAX installed."""

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from foretell.frontends.converted.converter_worker import Refusal
from foretell.frontends.converted.jax_worker import convert, convert_function


@pytest.fixture
def jax2onnx_calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What jax2onnx is asked for."""
    seen: dict[str, Any] = {}

    def to_onnx(function: Any, specs: list[Any], **options: Any) -> str:
        seen.update(options, function=function, specs=specs)
        return "proto"

    config = SimpleNamespace(update=lambda key, value: seen.update({key: value}))
    stand_in = SimpleNamespace(ShapeDtypeStruct=lambda *arguments: arguments, config=config, __version__="2.0")
    monkeypatch.setitem(sys.modules, "jax", stand_in)
    monkeypatch.setitem(sys.modules, "jax2onnx", SimpleNamespace(to_onnx=to_onnx))
    return seen


def test_inputs_as_the_user_gave_them(jax2onnx_calls: dict[str, Any]) -> None:
    assert convert_function(len, [[None, [8, 3], None], ["ids", [], "int64"]], None, Refusal) == "proto"
    assert jax2onnx_calls["specs"] == [(("B", 8, 3), "float32"), (("B",), "int64")]
    assert jax2onnx_calls["input_names"] == ["x0", "ids"]


def test_inputs_as_the_examples_have_them(jax2onnx_calls: dict[str, Any]) -> None:
    example, number = SimpleNamespace(shape=(2, 5), dtype="f"), SimpleNamespace(shape=(), dtype="i")
    convert({"format": "python", "built": (len, (example, number)), "inputs": []}, Path(), Refusal)
    assert jax2onnx_calls["specs"] == [(("B", 5), "f"), ((), "i")]
    convert_function(len, [], example, Refusal)
    assert jax2onnx_calls["specs"] == [(("B", 5), "f")]
    assert "input_names" not in jax2onnx_calls or jax2onnx_calls["input_names"]


def test_modules_are_set_to_evaluate(jax2onnx_calls: dict[str, Any]) -> None:
    class Module:
        mode = "train"

        def __call__(self) -> None: ...
        def train(self) -> None: ...
        def eval(self) -> None:
            self.mode = "eval"

    module = Module()
    convert_function(module, [[None, [4], None]], None, Refusal)
    assert module.mode == "eval"


def test_what_cannot_be_converted(jax2onnx_calls: dict[str, Any]) -> None:
    with pytest.raises(Refusal, match="list is neither a function"):
        convert_function([], [], None, Refusal)
    with pytest.raises(Refusal, match="inputs are not known") as raised:
        convert_function(len, [], None, Refusal)
    assert raised.value.kind == "input"


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    python = list(sys.version_info[:2])
    search = [*sys.path, "/the/callers"]
    return {
        "format": "object",
        "inputs": [[None, [4], None]],
        "python": python,
        "search": search,
        "x64": True,
        "jax": "2.0",
    }


def test_an_object_is_read_from_the_private_folder(
    tmp_path: Path, jax2onnx_calls: dict[str, Any], task: dict[str, Any]
) -> None:
    (tmp_path / "given.pickle").write_bytes(pickle.dumps(len))
    assert convert({**task, "path": "/never/looked/at"}, tmp_path, Refusal) == ("proto", set())
    assert (jax2onnx_calls["function"], jax2onnx_calls["jax_enable_x64"], sys.path[-1]) == (len, True, "/the/callers")
    assert jax2onnx_calls["specs"] == [(("B", 4), "float32")]


def test_an_object_of_another_python_is_not_even_read(tmp_path: Path, task: dict[str, Any]) -> None:
    with pytest.raises(Refusal, match=r"runs in Python 3\.7.* pip install 'foretell\[jax\]'") as raised:
        convert({**task, "python": [3, 7]}, tmp_path, Refusal)
    assert raised.value.kind == "missing"


def raise_(error: BaseException) -> Callable[..., None]:
    def fails(*_: object, **__: object) -> None:
        raise error

    return fails


def test_what_cannot_be_rebuilt_or_converted(
    tmp_path: Path, jax2onnx_calls: dict[str, Any], task: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "given.pickle").write_bytes(b"cno_such_module\nf\n.")
    with pytest.raises(Refusal, match=r"cannot be rebuilt .*ModuleNotFoundError.*no_such_module.*net\.py:build$"):
        convert(task, tmp_path, Refusal)
    with pytest.raises(Refusal, match=r"cannot be rebuilt .* jax 1\.0, but .* jax 2\.0\..*pip install"):
        convert({**task, "jax": "1.0"}, tmp_path, Refusal)
    (tmp_path / "given.pickle").write_bytes(pickle.dumps(len))
    monkeypatch.setattr(sys.modules["jax2onnx"], "to_onnx", raise_(TypeError("missing\narguments")))
    with pytest.raises(TypeError, match="missing"):
        convert(task, tmp_path, Refusal)
    with pytest.raises(Refusal, match=r"failed: TypeError: missing arguments\. It was made with jax 1\.0"):
        convert({**task, "jax": "1.0"}, tmp_path, Refusal)
    monkeypatch.setattr(pickle, "load", raise_(SystemExit(3)))
    with pytest.raises(Refusal, match=r"cannot be rebuilt .*SystemExit: 3"):
        convert(task, tmp_path, Refusal)
