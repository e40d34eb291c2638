"""Bodies of If, Loop and Scan: what they read from around, how often they run, what shape comes out."""

from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, helper

from foretell.frontends.onnx.control import outer_names, read_control
from foretell.frontends.onnx.nodes import NodeReader
from foretell.frontends.onnx.shapes import Shapes, read_attributes
from foretell.graph import Graph, Node
from foretell.testing import one_node


def _value(name: str, kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, None)


def _read_body(body: GraphProto, shapes: Shapes, reader: NodeReader, names: tuple[str, ...], name: str) -> Graph:
    for node in body.node:
        shapes.run(node, read_attributes(node))
    last = body.node[-1]
    return one_node(last.op_type, [shapes.known[i][0] for i in last.input], [shapes.known[last.output[0]][0]])


def _read(node: NodeProto, shapes: Shapes) -> tuple[Node, NodeReader]:
    reader = NodeReader(shapes)
    return read_control(node, read_attributes(node), shapes, reader, _read_body), reader


def _loop() -> NodeProto:
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["more"]),
            helper.make_node("Add", ["state", "bias"], ["next"]),
            helper.make_node("Relu", ["next"], ["row"]),
        ],
        "body",
        [_value("i", TensorProto.INT64), _value("go", TensorProto.BOOL), _value("state")],
        [_value("more", TensorProto.BOOL), _value("next"), _value("row")],
    )
    return helper.make_node("Loop", ["count", "", "start"], ["end", "rows"], name="loop", body=body)


def _shapes() -> Shapes:
    shapes = Shapes({"": 18}, {})
    shapes.enter("count", (), TensorProto.INT64)
    shapes.enter("start", (2, 3), TensorProto.FLOAT)
    shapes.enter("bias", (3,), TensorProto.FLOAT)
    return shapes


def test_a_loop_stacks_its_rows_over_its_trips() -> None:
    shapes = _shapes()
    shapes.keep("count", np.array(5))
    assert outer_names(_loop()) == ["bias"]
    node, reader = _read(_loop(), shapes)
    assert node.attributes["trips"] == 5
    assert node.inputs == ("count", "", "start", "bias")
    assert (shapes.known["end"][0], shapes.known["rows"][0]) == ((2, 3), (5, 2, 3))
    assert not reader.warnings


def test_a_loop_without_a_known_end_is_counted_once_with_a_warning() -> None:
    node, reader = _read(_loop(), _shapes())
    assert node.attributes["trips"] == 1
    assert reader.warnings == ["The number of iterations of loop 'loop' depends on data; one is counted."]
    endless = _shapes()
    endless.keep("count", np.array(2**63 - 1))
    node, reader = _read(_loop(), endless)
    assert node.attributes["trips"] == 1
    assert "until its condition" in reader.warnings[0]


def test_a_scan_runs_along_its_axis() -> None:
    body = helper.make_graph([helper.make_node("Neg", ["piece"], ["out"])], "body", [_value("piece")], [_value("out")])
    node = helper.make_node("Scan", ["x"], ["y"], body=body, num_scan_inputs=1, scan_input_axes=[1])
    shapes = Shapes({"": 18}, {})
    shapes.enter("x", (2, 7, 3), TensorProto.FLOAT)
    read, _ = _read(node, shapes)
    assert read.attributes["trips"] == 7
    assert shapes.known["y"][0] == (7, 2, 3)


def test_a_known_condition_leaves_one_branch() -> None:
    branches = {
        f"{name}_branch": helper.make_graph([helper.make_node(op, ["x"], [name])], name, [], [_value(name)])
        for name, op in (("then", "Relu"), ("else", "Neg"))
    }
    node = helper.make_node("If", ["c"], ["y"], **branches)
    for known, expected in ((None, ["Relu", "Neg"]), (True, ["Relu"]), (False, ["Neg"])):
        shapes = Shapes({"": 18}, {})
        shapes.enter("c", (), TensorProto.BOOL)
        shapes.enter("x", (4,), TensorProto.FLOAT)
        if known is not None:
            shapes.keep("c", np.array(known))
        read, _ = _read(node, shapes)
        assert sorted(b.nodes[0].op for b in read.bodies) == sorted(expected)
        assert shapes.known["y"] == ((4,), TensorProto.FLOAT)
