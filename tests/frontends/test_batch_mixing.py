"""Axes that are no batch, because something reads across them: what had been scaled to one step, token or pixel."""

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from foretell.errors import InputError
from foretell.frontends.batch_mixing import mixes_batch
from foretell.graph.cost.node_costs import graph_costs
from foretell.workflows import load_graph


def _weight(name: str, *shape: int) -> TensorProto:
    return numpy_helper.from_array(np.zeros(shape, np.float32), name)


def _numbers(name: str, *values: int) -> TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def _model(nodes: list[Any], shape: tuple[int | str, ...], *weights: TensorProto) -> ModelProto:
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, s) for name, s in (("x", shape), ("y", None))]
    graph = helper.make_graph(nodes, "net", tensors[:1], tensors[1:], initializer=weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def _node(op: str, inputs: str, output: str = "y", **attributes: Any) -> Any:
    return helper.make_node(op, inputs.split(), [output], **attributes)


def _scan() -> Any:
    a, b, c, d = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, 6]) for name in "abcd")
    body = helper.make_graph([_node("Add", "a b", "c"), _node("Relu", "c", "d")], "body", [a, b], [c, d])
    return helper.make_node("Scan", ["start", "x"], ["last", "y"], body=body, num_scan_inputs=1)


LINEAR = _node("MatMul", "x w", "h")
TOKENS: list[Any] = [
    _node("Transpose", "h", "t", perm=[1, 0]),
    _node("MatMul", "h t", "scores"),
    _node("Softmax", "scores", "shares"),
    _node("MatMul", "shares h"),
]
CASES: dict[str, tuple[ModelProto, int]] = {
    "LSTM": (
        _model([_node("LSTM", "x w r", hidden_size=8)], (30, 4, 6), _weight("w", 1, 32, 6), _weight("r", 1, 32, 8)),
        30 * 4 * 32 * (6 + 8),
    ),
    "MatMul": (_model([LINEAR, *TOKENS], (30, 6), _weight("w", 6, 6)), 30 * 36 + 2 * 30 * 30 * 6),
    "Einsum": (_model([_node("Einsum", "x x", equation="id,jd->ij")], (30, 6)), 30 * 30 * 6),
    "Softmax": (_model([LINEAR, _node("Softmax", "h", axis=0)], (30, 6), _weight("w", 6, 6)), 30 * 36),
    "CumSum": (_model([LINEAR, _node("CumSum", "h zero")], (30, 6), _weight("w", 6, 6), _numbers("zero", 0)), 30 * 36),
    "Conv": (
        _model(
            [_node("Unsqueeze", "x zero", "u"), _node("Conv", "u w")],
            (3, 9, 9), _numbers("zero", 0), _weight("w", 5, 3, 3, 3),
        ),
        5 * 27 * 49,
    ),
    "Scan": (_model([_scan()], (20, 8, 6), _weight("start", 8, 6)), 0),
}  # fmt: skip


@pytest.mark.parametrize("operator", CASES)
def test_a_first_axis_that_is_read_across_stays_as_it_is(operator: str) -> None:
    model, macs = CASES[operator]
    graph = load_graph(model, use_cache=False)
    size = model.graph.input[0].type.tensor_type.shape.dim[0].dim_value
    assert graph.tensors["x"].shape[0] == size
    assert graph_costs(graph).total.macs == macs
    assert any(f"{operator} reads across it" in warning for warning in graph.warnings)
    with pytest.raises(InputError, match="has no batch"):
        load_graph(model, batch_size=4, use_cache=False)


def test_a_first_axis_that_no_output_has_stays_as_it_is() -> None:
    model = _model([LINEAR, _node("ReduceMean", "h", axes=[0])], (30, 6), _weight("w", 6, 6))
    graph = load_graph(model, use_cache=False)
    assert graph.tensors["x"].shape == (30, 6)
    assert any("no output has it" in warning for warning in graph.warnings)


@pytest.mark.parametrize(
    "nodes",
    [
        [LINEAR, _node("ReduceMean", "h", "loss", keepdims=0), _node("Relu", "h")],  # a loss beside the result
        [_node("Transpose", "x", "t", perm=[1, 0]), _node("Gemm", "t w", transA=1)],  # transposed twice
        [LINEAR, _node("Einsum", "h w", equation="bi,ij->bj")],
    ],
)
def test_what_keeps_items_apart_has_a_batch(nodes: list[Any]) -> None:
    graph = load_graph(_model(nodes, (30, 6), _weight("w", 6, 6)), batch_size=4, use_cache=False)
    assert [graph.tensors[name].shape[0] for name in ("x", "y")] == [4, 4]
    assert mixes_batch(graph) is None


def test_two_inputs_may_meet() -> None:
    """A contrastive model pairs every image with every text; both still have the batch."""
    model = _model([_node("Transpose", "z", "t", perm=[1, 0]), _node("MatMul", "x t")], (8, 6))
    model.graph.input.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, (8, 6)))
    assert load_graph(model, use_cache=False).warnings == ()


def test_an_open_axis_of_tokens_has_to_be_given() -> None:
    model = _model([LINEAR, *TOKENS], ("tokens", 6), _weight("w", 6, 6))
    with pytest.raises(InputError, match=r"open axis 'tokens'.*MatMul reads across it.*x=2708x6!"):
        load_graph(model, use_cache=False)
    graph = load_graph(model, input_shape="30x6!", use_cache=False)
    assert graph_costs(graph).total.macs == 30 * 36 + 2 * 30 * 30 * 6
