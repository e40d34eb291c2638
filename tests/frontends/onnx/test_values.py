"""Shape arithmetic on small values agrees with ONNX Runtime's own, and never grows."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from foretell.frontends.onnx.values import MAX_ELEMENTS, evaluate

ort = pytest.importorskip("onnxruntime")
INT, FLOAT = np.int64, np.float32
CASES: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("Add", [np.array([1, 2], INT), np.array([3], INT)], {}),
    ("Div", [np.array([-7, 7, -8], INT), np.array([2, -2, 4], INT)], {}),
    ("Mod", [np.array([-7, 7], INT), np.array([4, 4], INT)], {}),
    ("Mul", [np.array([[1], [2]], INT), np.array([3, 4], INT)], {}),
    ("Sub", [np.array(9, INT), np.array(4, INT)], {}),
    ("Max", [np.array([1, 5], INT), np.array([3, 2], INT)], {}),
    ("Where", [np.array([True, False]), np.array([1, 2], INT), np.array([3, 4], INT)], {}),
    ("Equal", [np.array([1, 2], INT), np.array([1, 3], INT)], {}),
    ("Gather", [np.array([[1, 2], [3, 4]], INT), np.array([1, 0], INT)], {"axis": 1}),
    ("Concat", [np.array([1], INT), np.array([2, 3], INT)], {"axis": 0}),
    ("Transpose", [np.arange(6).reshape(2, 3)], {"perm": [1, 0]}),
    ("Slice", [np.arange(10), np.array([1], INT), np.array([9], INT), np.array([0], INT), np.array([3], INT)], {}),
    ("Slice", [np.arange(10), np.array([-1], INT), np.array([-11], INT), np.array([0], INT), np.array([-2], INT)], {}),
    ("Squeeze", [np.array([[3]], INT), np.array([0], INT)], {}),
    ("Unsqueeze", [np.array([3], INT), np.array([0, 2], INT)], {}),
    ("Reshape", [np.arange(6), np.array([2, -1], INT)], {}),
    ("Expand", [np.array([[1], [2]], INT), np.array([2, 3], INT)], {}),
    ("ConstantOfShape", [np.array([2, 2], INT)], {"value": np.array([7], INT)}),
    ("Range", [np.array(1, INT), np.array(9, INT), np.array(3, INT)], {}),
    ("Split", [np.arange(7), np.array([3, 4], INT)], {}),
    ("ReduceProd", [np.array([[2, 3], [4, 5]], INT)], {"keepdims": 0}),
    ("ReduceSum", [np.array([[2, 3], [4, 5]], INT), np.array([1], INT)], {}),
    ("Cast", [np.array([1.7, -1.7], FLOAT)], {"to": 7}),
    ("Clip", [np.array([-2.0, 3.0], FLOAT), np.array(0.0, FLOAT)], {}),
    ("Clip", [np.array([-2, 9], INT), np.array(0, INT), np.array(4, INT)], {}),
    ("Round", [np.array([0.5, 1.5, -1.2], FLOAT)], {}),
    ("Floor", [np.array([1.7, -1.7], FLOAT)], {}),
]


@pytest.mark.parametrize(("op", "inputs", "attributes"), CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)])
def test_agrees_with_onnx_runtime(op: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
    names = [f"i{k}" for k in range(len(inputs))]
    outputs = ["o0", "o1"] if op == "Split" else ["o0"]
    raw = {k: numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v for k, v in attributes.items()}
    types = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, inputs)
    ]
    graph = helper.make_graph(
        [helper.make_node(op, names, outputs, **raw)], "g", types, [onnx.ValueInfoProto(name=o) for o in outputs]
    )
    model = onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    )
    expected = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, dict(zip(names, inputs))
    )
    result = evaluate(op, inputs, attributes)
    assert result is not None
    for have, want in zip(result, expected, strict=True):
        np.testing.assert_array_equal(have, want)
        assert have.dtype == want.dtype


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("Add", [np.zeros((MAX_ELEMENTS, 1), INT), np.zeros((1, MAX_ELEMENTS), INT)], {}),
        ("Expand", [np.zeros(1, INT), np.array([2**32, 2**32], INT)], {}),
        ("ConstantOfShape", [np.array([2**33, 2**31], INT)], {}),
        ("ConstantOfShape", [np.array([-1], INT)], {}),
        ("Range", [np.array(0, INT), np.array(2**62, INT), np.array(1, INT)], {}),
        ("Range", [np.array(0, INT), np.array(5, INT), np.array(0, INT)], {}),
        ("Split", [np.zeros(4, INT)], {"num_outputs": 2**62}),
        ("Gather", [np.zeros((1, 4096), INT), np.zeros(4096, INT)], {}),
        ("Concat", [np.zeros(4096, INT)] * 5, {"axis": 0}),
        ("Reshape", [np.zeros(4, INT), np.array([3], INT)], {}),
        ("Cast", [np.zeros(4, INT)], {"to": 99}),
        ("Div", [np.zeros(4, INT), "text"], {}),
        ("NoSuchThing", [np.zeros(4, INT)], {}),
    ],
)
def test_values_that_are_too_large_or_impossible_stay_unknown(
    op: str, inputs: list[Any], attributes: dict[str, Any]
) -> None:
    if isinstance(inputs[-1], str):
        inputs = [inputs[0], None]
    assert evaluate(op, inputs, attributes) is None
