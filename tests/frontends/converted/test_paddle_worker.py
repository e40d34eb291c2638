"""Programs of Paddle: names of weights, biases that are none; without Paddle installed."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from onnx import TensorProto, helper

from foretell.frontends.converted import paddle_worker
from foretell.frontends.converted.converter_worker import Refusal
from foretell.frontends.converted.paddle_worker import convert, name_weights


def task(path: Path) -> dict[str, object]:
    return {"worker": "paddle", "format": "program", "path": str(path), "inputs": [], "trust": False}


def test_weights_must_lie_beside_the_program(tmp_path: Path) -> None:
    (tmp_path / "net.json").write_text("{}")
    with pytest.raises(Refusal, match=r"net\.pdiparams must be beside it"):
        convert(task(tmp_path / "net.json"), tmp_path, Refusal)


def test_constants_that_the_converter_made_up_are_no_weights() -> None:
    one = helper.make_tensor("t", TensorProto.FLOAT, [1], [1.0])
    nodes = [
        helper.make_node("Constant", [], ["linear_0.b_0"], value=one),
        helper.make_node("Constant", [], ["helper.constant.0"], value=one),
        helper.make_node("Add", ["linear_0.b_0", "helper.constant.0"], ["p2o.pd_op.add.0"]),
    ]
    graph = helper.make_graph(nodes, "g", [], [helper.make_tensor_value_info("p2o.pd_op.add.0", 1, [1])])
    name_weights(graph)
    assert list(graph.node[2].input) == ["linear_0.b_0", "helper_constant_0"]
    assert graph.output[0].name == graph.node[2].output[0] == "p2o_pd_op_add_0"


def test_biases_that_a_cell_only_pretends_to_have(tmp_path: Path) -> None:
    def weight(name: str, trained: int) -> dict[str, object]:
        return {"#": "p", "A": [0, 1, 1, name], "OA": [1, 1 - trained, trained]}

    ops = [weight("lstm_cell_0.b_0", 0), weight("lstm_cell_0.w_0", 1), weight("linear_0.b_0", 0), {"#": "1.add"}]
    ops.append(weight("gru_cell_1.b_1", 1))
    (tmp_path / "net.json").write_text(json.dumps({"program": {"regions": [{"blocks": [{"ops": ops}]}]}}))
    assert paddle_worker._idle_biases(tmp_path / "net.json") == {"lstm_cell_0.b_0"}
    assert paddle_worker._idle_biases(tmp_path / "net.pdmodel") == set()


def test_the_converter_is_never_asked_to_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a file to save to, paddle2onnx lets Polygraphy install packages."""
    seen: dict[str, object] = {}

    def export(program: str, weights: str, **options: object) -> None:
        seen.update(options)
        stand_in.logging.error("Failed: no\nsuch operator")
        raise UnboundLocalError

    stand_in = SimpleNamespace(export=export, logging=SimpleNamespace())
    monkeypatch.setitem(sys.modules, "paddle2onnx", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "paddle2onnx.convert", stand_in)
    for name in ("net.json", "net.pdiparams"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(Refusal, match="cannot convert it: Failed: no such operator"):
        convert(task(tmp_path / "net.json"), tmp_path, Refusal)
    assert "save_file" not in seen
    assert seen["enable_optimize"] is False
