"""Shapes of ONNX tensors, and the small values that decide them."""

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from foretell.errors import ModelError
from foretell.frontends.onnx.shapes import Shapes, read_attributes, read_type
from foretell.workflows.workload import load_graph


def _shapes(**shapes: tuple[int, ...]) -> Shapes:
    inferred = Shapes({"": 18}, {})
    for name, shape in shapes.items():
        inferred.enter(name, shape, TensorProto.FLOAT)
    return inferred


def _run(shapes: Shapes, op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> None:
    node = helper.make_node(op, inputs, outputs, **attributes)
    shapes.run(node, read_attributes(node))


def test_shape_arithmetic_decides_a_reshape() -> None:
    shapes = _shapes(x=(4, 6, 5))
    shapes.enter_constant("rest", numpy_helper.from_array(np.array([-1]), "rest"))
    _run(shapes, "Shape", ["x"], ["batch"], end=1)
    _run(shapes, "Concat", ["batch", "rest"], ["target"], axis=0)
    _run(shapes, "Reshape", ["x", "target"], ["y"])
    assert shapes.values["target"].tolist() == [4, -1]
    assert shapes.known["y"] == ((4, 30), TensorProto.FLOAT)


def test_what_cannot_be_is_refused() -> None:
    shapes = _shapes(x=(4, 6), w=(5, 7), target=(2,))
    with pytest.raises(ModelError, match=r"\(MatMul\) does not fit its inputs \[\[4, 6\], \[5, 7\]\]"):
        _run(shapes, "MatMul", ["x", "w"], ["y"])
    with pytest.raises(ModelError, match=r"The shape of 'n', .*depends on data"):
        _run(shapes, "NonZero", ["x"], ["n"])
    with pytest.raises(ModelError, match="negative dimension -1"):
        shapes.enter("bad", (2, -1), TensorProto.FLOAT)
    with pytest.raises(ModelError, match="impossible shape"):
        shapes.enter("bad", (2**30, 2**30), TensorProto.FLOAT)


def test_a_split_without_sizes_leaves_the_rest_to_the_last() -> None:
    shapes = _shapes(x=(2, 7))
    _run(shapes, "Split", ["x"], ["a", "b", "c"], axis=-1, num_outputs=3)
    assert [shapes.known[n][0] for n in "abc"] == [(2, 3), (2, 3), (2, 1)]
    with pytest.raises(ModelError, match="makes 2 outputs"):
        _run(shapes, "Split", ["x"], ["d", "e"], axis=1, num_outputs=3)


def test_types_and_weights() -> None:
    assert read_type(helper.make_tensor_type_proto(TensorProto.INT64, [2, 3])) == ((2, 3), TensorProto.INT64)
    assert read_type(helper.make_tensor_type_proto(TensorProto.INT64, ["batch", 3])) is None
    shapes = _shapes()
    for name in ("block.gain", "gain"):
        shapes.enter_constant(name, numpy_helper.from_array(np.array([2.0], np.float32), name))
        _run(shapes, "Mul", [name, name], [f"{name} squared"])
    assert "block.gain squared" not in shapes.values  # a weight is never folded away
    assert shapes.values["gain squared"].tolist() == [4.0]


def test_a_symbol_of_an_input_has_its_size_everywhere() -> None:
    """Nothing infers the shape of a foreign operator, but the file states it, with the symbol of the batch."""
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 6]) for name in ("x", "h", "y")}
    nodes = [helper.make_node("Mine", ["x"], ["h"], domain="my.corp"), helper.make_node("Relu", ["h"], ["y"])]
    graph = helper.make_graph(nodes, "net", [values["x"]], [values["y"]], value_info=[values["h"]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("my.corp", 1)])
    read = load_graph(model, batch_size=5, allow_unknown=True)
    assert read.tensors["h"].shape == (5, 6)
