"""Functions of the running program; the converter is played by a stand-in."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from foretell.errors import InputError, MissingExtraError, ModelError
from foretell.frontends import ModelRequest, convert, jax_model, parse_inputs
from foretell.frontends.jax_model import JaxFrontend
from foretell.testing import tiny_onnx


def double(x: object) -> object:
    return x


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    stand_in = SimpleNamespace(to_onnx=lambda function, specs, **options: tiny_onnx())
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(ShapeDtypeStruct=lambda shape, dtype: (shape, dtype)))
    monkeypatch.setitem(sys.modules, "jax2onnx", stand_in)
    monkeypatch.setattr(jax_model, "require", lambda *_, **__: stand_in)
    return stand_in


def test_a_function_is_read_where_it_is(installed: SimpleNamespace) -> None:
    name = tiny_onnx().graph.input[0].name
    sizes = "x".join(str(d.dim_value) for d in tiny_onnx().graph.input[0].type.tensor_type.shape.dim[1:])
    graph = convert(ModelRequest(double, parse_inputs([f"{name}={sizes}"])))
    assert graph.parameter_count == 248
    assert graph.name == "double"
    assert JaxFrontend().fingerprint(ModelRequest(double)) is None


def test_its_inputs_must_be_given(installed: SimpleNamespace) -> None:
    with pytest.raises(InputError, match="inputs of double are not known"):
        convert(ModelRequest(double))


def test_what_jax2onnx_cannot_do_is_told(installed: SimpleNamespace) -> None:
    def fail(*_: object, **__: object) -> None:
        raise NotImplementedError("no\nplugin")

    installed.to_onnx = fail
    with pytest.raises(ModelError, match="double cannot be converted: NotImplementedError: no plugin"):
        convert(ModelRequest(double, parse_inputs(["4"])))


def test_without_jax2onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax2onnx", None)
    with pytest.raises(MissingExtraError, match="needs jax2onnx"):
        convert(ModelRequest(double, parse_inputs(["4"])))


def test_a_python_file_asks_for_trust(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("import jax")
    with pytest.raises(ModelError, match="--trust"):
        convert(ModelRequest(f"{tmp_path / 'net.py'}:build"))
