"""ONNX nodes become graph nodes: inputs that only say how, weights told from data, origins."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from foretell.errors import ModelError
from foretell.frontends.onnx.nodes import NodeReader, dtype_of
from foretell.frontends.onnx.shapes import Shapes


def _reader() -> NodeReader:
    shapes = Shapes({"": 18}, {})
    shapes.enter("x", (2, 3), TensorProto.FLOAT)
    return NodeReader(shapes)


def test_element_types() -> None:
    assert [dtype_of(t) for t in (TensorProto.FLOAT, TensorProto.BFLOAT16, TensorProto.INT4)] == [
        "fp32",
        "bf16",
        "int4",
    ]
    with pytest.raises(ModelError, match="unknown ONNX element type 99"):
        dtype_of(99)


def test_trained_weights_differ_from_statistics() -> None:
    reader = _reader()
    reader.constants |= dict.fromkeys(["scale", "bias", "mean", "var", "one", "bn.gain"], TensorProto.FLOAT)
    reader.constants |= {"index": TensorProto.INT64, "packed": TensorProto.INT8}
    reader.convert(helper.make_node("BatchNormalization", ["x", "scale", "bias", "mean", "var"], ["y"]), {})
    kinds = {n: reader.kind_of(n, (3,)) for n in ("scale", "bias", "mean", "var", "index")}
    assert kinds == {"scale": "parameter", "bias": "parameter", "mean": "buffer", "var": "buffer", "index": "buffer"}
    assert (reader.kind_of("one", ()), reader.kind_of("bn.gain", (1,))) == ("constant", "parameter")
    assert (reader.kind_of("packed", (3,)), reader.kind_of("packed", (3, 4))) == ("buffer", "parameter")


def test_constant_inputs_that_configure_a_node_become_attributes() -> None:
    reader = _reader()
    reader.read_constant(helper.make_node("Constant", [], ["at"]), {"value_ints": [1]})
    reader.read_constant(helper.make_node("Constant", [], ["index"]), {"value_int": 0})
    assert reader.shapes.known["at"] == ((1,), TensorProto.INT64)
    sliced = reader.convert(helper.make_node("Slice", ["x", "at", "at"], ["y"]), {})
    assert sliced is not None
    assert sliced.inputs == ("x",)
    assert sliced.attributes == {"starts": (1,), "ends": (1,), "axes": (0,)}
    picked = reader.convert(helper.make_node("Gather", ["x", "index"], ["z"]), {"axis": 1})
    assert picked is not None
    assert (picked.op, picked.inputs, picked.attributes) == ("Select", ("x",), {"axis": 1})


def test_known_results_run_nothing_and_names_stay_unique() -> None:
    reader = _reader()
    reader.shapes.enter("shape", (2,), TensorProto.INT64)
    reader.shapes.keep("shape", np.array([2, 3]))
    assert reader.convert(helper.make_node("Shape", ["x"], ["shape"]), {}) is None
    assert reader.kind_of("shape", (2,)) == "buffer"
    relus = [reader.convert(helper.make_node("Relu", ["x"], [o], name="/act/Relu"), {}) for o in ("a", "b")]
    assert [(r.name, r.module) for r in relus if r is not None] == [("/act/Relu", "act"), ("b", "act")]
