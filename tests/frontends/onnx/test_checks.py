"""What is refused before an ONNX model is converted."""

import onnx
import pytest
from onnx import TensorProto, helper

from foretell.errors import ModelError, UnsupportedOperatorError
from foretell.frontends.onnx.checks import bodies, check_model, inline_functions, label
from foretell.testing import tiny_onnx


def test_broken_structure_is_named() -> None:
    check_model(tiny_onnx(), allow_unknown=False)
    dangling, twice = tiny_onnx(), tiny_onnx()
    dangling.graph.node[1].input[0] = "nowhere"
    with pytest.raises(ModelError, match=r"'/act/Relu' .* reads 'nowhere'"):
        check_model(dangling, allow_unknown=False)
    twice.graph.node[1].output[0] = "c"
    with pytest.raises(ModelError, match="'c' is made twice, the second time by node '/act/Relu'"):
        check_model(twice, allow_unknown=False)


def test_an_unknown_operator_needs_leave() -> None:
    model = tiny_onnx()
    model.graph.node[1].op_type, model.graph.node[1].domain = "Mystery", "com.example"
    with pytest.raises(UnsupportedOperatorError, match=r"'Mystery' of the domain 'com.example'"):
        check_model(model, allow_unknown=False)
    check_model(model, allow_unknown=True)


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "C:weights", "a\\..\\b", ""])
def test_weights_stay_in_the_models_folder(location: str) -> None:
    model = tiny_onnx()
    model.graph.initializer[0].external_data[0].value = location
    with pytest.raises(ModelError, match=r"'conv.weight' .* outside the model's folder"):
        check_model(model, allow_unknown=False)


def _with_function(inner: str) -> onnx.ModelProto:
    function = helper.make_function(
        "local",
        "Twice",
        ["a"],
        ["b"],
        [
            helper.make_node("Relu", ["a"], ["m"]),
            helper.make_node(inner, ["m"], ["b"], domain="local" if inner == "Twice" else ""),
        ],
        [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)],
    )
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Twice", ["x"], ["y"], domain="local")],
        "g",
        [value("x", TensorProto.FLOAT, [2])],
        [value("y", TensorProto.FLOAT, [2])],
    )
    return helper.make_model(graph, functions=[function], opset_imports=function.opset_import, ir_version=10)


def test_functions_are_inlined_unless_they_call_themselves() -> None:
    inlined = inline_functions(_with_function("Neg"))
    assert [n.op_type for n in inlined.graph.node] == ["Relu", "Neg"]
    assert label(inlined.graph.node[-1]) == "y"
    assert not bodies(inlined.graph.node[0])
    with pytest.raises(ModelError, match="'Twice' calls itself"):
        inline_functions(_with_function("Twice"))
