"""What a Keras or TensorFlow file may hold, and how weights go through a conversion; without either installed."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto, helper

from converted_models import keras_file
from foretell.frontends.converted import keras_worker
from foretell.frontends.converted.converter_worker import Refusal
from foretell.frontends.converted.keras_worker import inputs_to_weights


def layer(name: str, module: str | None = "keras.layers", registered: str | None = None) -> dict[str, Any]:
    inner = {"class_name": name, "module": module, "registered_name": registered, "config": {"name": "a"}}
    return {"class_name": "Functional", "module": "keras", "config": {"layers": [inner]}}


def check(config: object, trust: bool = False) -> None:
    keras_worker._check_config(config, trust, Refusal)


def refused(config: object, trust: bool = False) -> Refusal:
    with pytest.raises(Refusal) as raised:
        check(config, trust)
    return raised.value


def test_layers_of_keras_are_welcome() -> None:
    check(layer("Dense"))
    check(layer("function", "builtins", "function"))
    check(layer("Dense", "keras.src.layers", "keras>Dense"))
    check({"config": [1, "Lambda", None, {"class_name": ["odd"]}]})


@pytest.mark.parametrize("name", ["Lambda", "TorchModuleWrapper"])
def test_code_in_a_file_asks_for_trust(name: str) -> None:
    error = refused(layer(name))
    assert error.kind == "untrusted"
    assert "--trust" in str(error)
    check(layer(name), trust=True)


@pytest.mark.parametrize(
    ("module", "registered"),
    [("os", None), ("builtins", None), (None, "Custom>Mine"), (None, "Mine"), ("my.code", "my>Mine")],
)
def test_objects_of_elsewhere_are_not_imported(module: str | None, registered: str | None) -> None:
    error = refused(layer("Mine", module, registered), trust=True)
    assert error.kind == "model"
    assert "model.export('folder')" in str(error)


def test_graphs_that_are_not_in_the_file() -> None:
    assert "TFSMLayer" in str(refused(layer("TFSMLayer")))


def test_the_configuration_is_read_without_keras(tmp_path: Path) -> None:
    path = keras_file(tmp_path / "m.keras", {"a": 1})
    assert keras_worker._keras_config(path, "keras", Refusal) == {"a": 1}
    with zipfile.ZipFile(tmp_path / "bad.keras", "w") as archive:
        archive.writestr("config.json", "{")
    for name in ("bad.keras", "absent.keras"):
        with pytest.raises(Refusal, match="not a Keras model"):
            keras_worker._keras_config(tmp_path / name, "keras", Refusal)


def test_a_lambda_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    path = keras_file(tmp_path / "m.keras", layer("Lambda"))
    task = {"worker": "keras", "format": "keras", "path": str(path), "inputs": [], "trust": False}
    with pytest.raises(Refusal, match="a Lambda layer"):
        keras_worker.convert(task, tmp_path, Refusal)
    assert json.dumps(task)


def test_inputs_become_weights_without_data() -> None:
    entry = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 3]) for n in ("x:0", "w:0")]
    graph = helper.make_graph([helper.make_node("Add", ["x:0", "w:0"], ["y"])], "g", entry, [])
    inputs_to_weights(graph, {"w:0": "weights.w"})
    assert [i.name for i in graph.input] == ["x:0"]
    assert [(t.name, list(t.dims), t.data_location) for t in graph.initializer] == [("weights.w", [4, 3], 1)]
    assert list(graph.node[0].input) == ["x:0", "weights.w"]
    keras_worker._plain_input_names(graph)
    assert (graph.input[0].name, graph.node[0].input[0]) == ("x", "x")


def test_weights_are_named_as_a_modules_state_and_once() -> None:
    class Variable:
        name = "conv/kernel:0"

    names = keras_worker._weight_names(["a", "b", "c/d"], {"a": Variable(), "b": Variable()})
    assert names == {"a": "weights.conv.kernel", "b": "weights.conv.kernel_2", "c/d": "weights.c.d"}


def test_erfc_is_one_minus_erf() -> None:
    graph = helper.make_graph([helper.make_node("Erfc", ["x"], ["y"], name="e")], "g", [], [])
    keras_worker._lower_erfc(graph)
    assert [(n.op_type, list(n.input), list(n.output)) for n in graph.node] == [
        ("Erf", ["x"], ["foretell_erf_0"]),
        ("Sub", ["foretell_one_0", "foretell_erf_0"], ["y"]),
    ]


def test_made_up_biases_of_zeros_go() -> None:
    zeros = helper.make_tensor("b", TensorProto.FLOAT, [1, 8], [0.0] * 8)
    real = helper.make_tensor("r", TensorProto.FLOAT, [1, 8], [0.5] * 8)
    nodes = [helper.make_node("LSTM", ["x", "w", "u", name], [name + "y"]) for name in ("b", "r")]
    graph = helper.make_graph(nodes, "g", [], [], [zeros, real])
    keras_worker._drop_zero_biases(graph)
    assert [n.input[3] for n in graph.node] == ["", "r"]


def test_dtypes_have_tensorflows_names() -> None:
    assert [keras_worker._tf_dtype(n) for n in (None, "fp16", "int64")] == ["float32", "float16", "int64"]
