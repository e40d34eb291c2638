"""Sequences are followed by name."""

from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper

from foretell.errors import ModelError
from foretell.frontends.onnx.sequences import lower
from foretell.frontends.onnx.shapes import Shapes


def _shapes(**values: int) -> Shapes:
    shapes = Shapes({"": 18}, {})
    for name in "abc":
        shapes.enter(name, (2, 5), TensorProto.FLOAT)
    for name, value in values.items():
        shapes.keep(name, np.array(value))
    return shapes


def _lower(shapes: Shapes, op: str, inputs: list[str], output: str, **attributes: Any) -> NodeProto | None:
    return lower(helper.make_node(op, inputs, [output], name="n", **attributes), attributes, shapes)


def test_items_come_and_go() -> None:
    shapes = _shapes(first=0, last=-1, far=9)
    assert _lower(shapes, "SequenceConstruct", ["a", "b"], "s") is None
    assert _lower(shapes, "SequenceInsert", ["s", "c", "first"], "t") is None
    assert shapes.sequences["t"] == ("c", "a", "b")
    assert _lower(shapes, "SequenceLength", ["t"], "n") is None
    assert shapes.values["n"] == 3
    assert _lower(shapes, "SequenceErase", ["t"], "u") is None
    assert shapes.sequences["u"] == ("c", "a")
    read = _lower(shapes, "SequenceAt", ["t", "last"], "y")
    assert read is not None
    assert (read.op_type, list(read.input), list(read.output)) == ("Identity", ["b"], ["y"])
    with pytest.raises(ModelError, match="reads item 9 of a sequence of 3"):
        _lower(shapes, "SequenceAt", ["t", "far"], "z")


def test_splitting_names_the_pieces() -> None:
    shapes = _shapes(step=2)
    split = _lower(shapes, "SplitToSequence", ["a", "step"], "s", axis=-1)
    assert split is not None
    assert (split.op_type, list(split.output)) == ("Split", ["s.0", "s.1", "s.2"])
    assert [shapes.known[n][0] for n in shapes.sequences["s"]] == [(2, 2), (2, 2), (2, 1)]
    rows = _lower(shapes, "SplitToSequence", ["a"], "r", axis=0, keepdims=0)
    assert rows is not None
    assert (rows.op_type, [shapes.known[n][0] for n in rows.output]) == ("Select", [(5,), (5,)])


def test_joining_along_a_new_axis_stacks() -> None:
    shapes = _shapes()
    _lower(shapes, "SequenceConstruct", ["a", "b", "c"], "s")
    joined = _lower(shapes, "ConcatFromSequence", ["s"], "y", axis=1)
    assert joined is not None
    assert (joined.op_type, list(joined.input), "y" in shapes.known) == ("Concat", ["a", "b", "c"], False)
    _lower(shapes, "ConcatFromSequence", ["s"], "z", axis=-1, new_axis=1)
    assert shapes.known["z"] == ((2, 5, 3), TensorProto.FLOAT)


def test_what_depends_on_data_is_refused() -> None:
    shapes = _shapes()
    with pytest.raises(ModelError, match="The sequence that SequenceAt 'n' reads depends on data"):
        _lower(shapes, "SequenceAt", ["unknown", "a"], "y")
    with pytest.raises(ModelError, match="The sizes that SplitToSequence 'n' splits into depend on data"):
        _lower(shapes, "SplitToSequence", ["a", "b"], "y")
