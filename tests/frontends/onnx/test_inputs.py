"""Open dimensions of ONNX inputs take their sizes from ``--input``."""

import pytest
from onnx import GraphProto, TensorProto, helper

from foretell.errors import InputError
from foretell.frontends.onnx.inputs import OpenInput, resolve_inputs
from foretell.frontends.request import ModelRequest, parse_inputs
from foretell.testing import tiny_onnx


def _graph(**inputs: list[int | str]) -> GraphProto:
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, dims) for n, dims in inputs.items()]
    return helper.make_graph([], "g", values, [])


def _resolve(graph: GraphProto, *texts: str) -> dict[str, tuple[int | None, ...]]:
    return {i.name: i.shape for i in resolve_inputs(graph, ModelRequest("model", parse_inputs(texts)))}


def test_the_batch_stays_open_and_weights_are_no_inputs() -> None:
    graph = tiny_onnx(batch="N", size=16).graph
    graph.input.append(helper.make_tensor_value_info("fc.weight", TensorProto.FLOAT, [4, 8]))
    assert _resolve(graph) == {"x": (None, 3, 16, 16)}
    moved = OpenInput("x", (5, None), TensorProto.FLOAT)
    assert (moved.at_batch(7), moved.batch_axis(7)) == ((5, 7), 1)
    fixed = OpenInput("x", (5, 2), TensorProto.FLOAT)
    assert (fixed.at_batch(7), fixed.batch_axis(7), fixed.batch_axis(5)) == ((5, 2), None, 0)


def test_a_symbol_given_once_serves_all_inputs_and_their_sums() -> None:
    graph = _graph(ids=["batch", "seq"], mask=["batch", "seq + 1"], past=["layers", "batch", "2*seq"])
    assert _resolve(graph, "ids=9", "past=4x18") == {"ids": (None, 9), "mask": (None, 10), "past": (4, None, 18)}


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ((), "open dimensions: 3xside"),
        (("4x8",), "Axis 1 of the input 'x' is fixed at 3, but 4 was given"),
        (("8",), "takes 2 without the batch: 3xside"),
        (("3x8:int64",), "'x' is fp32 in the file, but int64 was given"),
        (("x=3x8", "y=9"), "'side' is 8 in one input and 9 in 'y'"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(texts: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        _resolve(_graph(x=["batch", 3, "side"], y=["batch", "side"]), *texts)
