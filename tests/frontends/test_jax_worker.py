"""Functions of JAX: their inputs, with the batch left open; without JAX installed."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from foretell.frontends.converter_worker import Refusal
from foretell.frontends.jax_worker import convert, convert_function


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What jax2onnx is asked for."""
    seen: dict[str, Any] = {}

    def to_onnx(function: Any, specs: list[Any], **options: Any) -> str:
        seen.update(options, function=function, specs=specs)
        return "proto"

    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(ShapeDtypeStruct=lambda shape, dtype: (shape, dtype)))
    monkeypatch.setitem(sys.modules, "jax2onnx", SimpleNamespace(to_onnx=to_onnx))
    return seen


def test_inputs_as_the_user_gave_them(asked: dict[str, Any]) -> None:
    assert convert_function(len, [[None, [8, 3], None], ["ids", [], "int64"]], None, Refusal) == "proto"
    assert asked["specs"] == [(("B", 8, 3), "float32"), (("B",), "int64")]
    assert asked["input_names"] == ["x0", "ids"]


def test_inputs_as_the_examples_have_them(asked: dict[str, Any]) -> None:
    example, number = SimpleNamespace(shape=(2, 5), dtype="f"), SimpleNamespace(shape=(), dtype="i")
    convert({"built": (len, (example, number)), "inputs": []}, None, Refusal)  # type: ignore[arg-type]
    assert asked["specs"] == [(("B", 5), "f"), ((), "i")]
    convert_function(len, [], example, Refusal)
    assert asked["specs"] == [(("B", 5), "f")]
    assert "input_names" not in asked or asked["input_names"]


def test_modules_are_set_to_evaluate(asked: dict[str, Any]) -> None:
    class Module:
        mode = "train"

        def __call__(self) -> None: ...
        def train(self) -> None: ...
        def eval(self) -> None:
            self.mode = "eval"

    module = Module()
    convert_function(module, [[None, [4], None]], None, Refusal)
    assert module.mode == "eval"


def test_what_cannot_be_converted(asked: dict[str, Any]) -> None:
    with pytest.raises(Refusal, match="list is no function"):
        convert_function([], [], None, Refusal)
    with pytest.raises(Refusal, match="inputs are not known") as raised:
        convert_function(len, [], None, Refusal)
    assert raised.value.kind == "input"
