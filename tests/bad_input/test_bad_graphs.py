"""Bad input ends in one line on stderr, exit code 2, nothing printed, left behind or run: ONNX graphs."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from google.protobuf.message import EncodeError
from onnx import TensorProto, helper

from bad_models import Refuse, accept, external, model_of, relu, save, tensor
from foretell.testing import tiny_onnx

BAD_GRAPHS = {
    "cycle": (
        model_of(
            [helper.make_node("Add", ["x", "b"], ["a"]), relu("a", "b")], [tensor("x", 1, 4)], [tensor("b", 1, 4)]
        ),
        "cycle",
    ),
    "own tail": (model_of([relu("a", "a")], [tensor("x", 1, 4)], [tensor("a", 1, 4)]), "cycle"),
    "nobody makes it": (model_of([relu("ghost", "y")], [tensor("x", 1, 4)], [tensor("y", 1, 4)]), "nothing makes"),
    "output made by no node": (model_of([relu("x", "y")], [tensor("x", 1, 4)], [tensor("z", 1, 4)]), "made by no node"),
    "made twice": (model_of([relu("x", "y"), relu("x", "y")], [tensor("x", 1, 4)], [tensor("y", 1, 4)]), "made twice"),
    "input made again": (model_of([relu("x", "x")], [tensor("x", 1, 4)], [tensor("x", 1, 4)]), "made twice"),
    "input twice": (model_of([relu("x", "y")], [tensor("x", 1, 4), tensor("x", 1, 4)], [tensor("y", 1, 4)]), "twice"),
    "weight twice": (
        model_of(
            [relu("x", "y")],
            [tensor("x", 1, 4)],
            [tensor("y", 1, 4)],
            (external("w", "w.bin", 4), external("w", "w.bin", 4)),
        ),
        "twice",
    ),
    "no operators": (model_of([], [tensor("x", 1, 4)], [tensor("x", 1, 4)]), "no operators"),
    "no outputs": (model_of([relu("x", "y")], [tensor("x", 1, 4)], []), "no outputs"),
    "negative input": (model_of([relu("x", "y")], [tensor("x", 1, -4)], [tensor("y", 1, 4)]), "negative"),
    "negative weight": (
        model_of(
            [helper.make_node("Add", ["x", "w"], ["y"])],
            [tensor("x", 1, 4)],
            [tensor("y", 1, 4)],
            (external("w", "w.bin", -4),),
        ),
        "negative",
    ),
    "huge input": (model_of([relu("x", "y")], [tensor("x", 1, 2**62)], [tensor("y", 1, 4)]), "impossible"),
    "huge input of many": (
        model_of([relu("x", "y")], [tensor("x", 2**31, 2**31, 2**31)], [tensor("y", 1, 4)]),
        "impossible",
    ),
    "huge weight": (
        model_of(
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            [tensor("x", 1, 4)],
            [],
            (external("w", "w.bin", 4, 2**62),),
        ),
        "",
    ),
    "huge outer product": (
        model_of(
            [helper.make_node("MatMul", ["x", "z"], ["y"])],
            [tensor("x", 2**30, 1), tensor("z", 1, 2**30)],
            [tensor("y", 1)],
        ),
        "impossible",
    ),
    "open dimension": (model_of([relu("x", "y")], [tensor("x", "batch", "length")], [tensor("y", 1, 4)]), "--input"),
    "no shape": (
        model_of([relu("x", "y")], [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)], [tensor("y", 1, 4)]),
        "--input",
    ),
    "shapes that do not fit": (
        model_of(
            [helper.make_node("MatMul", ["x", "z"], ["y"])], [tensor("x", 2, 3), tensor("z", 4, 5)], [tensor("y", 2, 5)]
        ),
        "does not fit",
    ),
    "shape from data": (
        model_of(
            [helper.make_node("NonZero", ["x"], ["i"]), helper.make_node("Cast", ["i"], ["y"], to=1)],
            [tensor("x", 2, 3)],
            [tensor("y", "n")],
        ),
        "depends on data",
    ),
    "no inputs to a convolution": (
        model_of([helper.make_node("Conv", [], ["y"])], [tensor("x", 1, 4)], [tensor("y", 1, 4)]),
        "",
    ),
    "not a tensor": (
        model_of(
            [helper.make_node("SequenceAt", ["s", "i"], ["y"])],
            [
                helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None),
                helper.make_tensor_value_info("i", TensorProto.INT64, []),
            ],
            [tensor("y", 1)],
        ),
        "not a tensor",
    ),
    "unknown operator of ONNX": (
        model_of([helper.make_node("Frobnicate", ["x"], ["y"])], [tensor("x", 1, 4)], [tensor("y", 1, 4)]),
        "--allow-unknown",
    ),
    "unknown element type": (
        model_of([relu("x", "y")], [helper.make_tensor_value_info("x", 99, [1, 4])], [tensor("y", 1, 4)]),
        "element type",
    ),
    "attribute of no function": (
        model_of(
            [
                onnx.NodeProto(
                    op_type="Elu",
                    input=["x"],
                    output=["y"],
                    attribute=[onnx.AttributeProto(name="alpha", type=1, ref_attr_name="a")],
                )
            ],
            [tensor("x", 1, 4)],
            [tensor("y", 1, 4)],
        ),
        "function",
    ),
    "If without branches": (
        model_of(
            [helper.make_node("If", ["c"], ["y"])],
            [helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
            [tensor("y", 1, 4)],
        ),
        "malformed",
    ),
}


@pytest.mark.parametrize("name", BAD_GRAPHS)
def test_an_impossible_graph_is_refused(refuse: Refuse, place: Path, name: str) -> None:
    model, expected = BAD_GRAPHS[name]
    line = refuse("predict", save(model, place / "bad.onnx"))
    assert expected in line


def test_an_opset_of_the_future_and_no_opset(refuse: Refuse, place: Path) -> None:
    model = tiny_onnx()
    model.opset_import[0].version = 999
    assert "opset 999" in refuse("predict", save(model, place / "future.onnx"))
    del model.opset_import[:]
    refuse("predict", save(model, place / "none.onnx"))


def test_a_zero_dimension_is_an_open_one(refuse: Refuse, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(model_of([relu("x", "y")], [tensor("x", 1, 0)], [tensor("y", 1, 4)]), place / "zero.onnx")
    assert "--input" in refuse("predict", path)
    assert accept(capsys, "inspect", path, "--input", "5", "--no-cache")["inputs"] == {"x": [1, 5]}


def test_a_huge_shape_made_by_arithmetic(refuse: Refuse, place: Path) -> None:
    for sizes in ([2**62, 4], [2**32, 2**32], [2**33, 2**31], [-5, 3]):
        weight = helper.make_tensor("s", TensorProto.INT64, [2], sizes)
        for op in ("Expand", "ConstantOfShape"):
            inputs = ["x", "s"] if op == "Expand" else ["s"]
            nodes = [helper.make_node(op, inputs, ["e"]), helper.make_node("Add", ["e", "x"], ["y"])]
            refuse(
                "predict",
                save(model_of(nodes, [tensor("x", 1, 1)], [tensor("y", 1, 1)], (weight,)), place / "huge.onnx"),
            )


def test_arithmetic_on_values_stays_small(place: Path, refuse: Refuse) -> None:
    """Broadcasting 4096 × 4096 × 4096 would take 512 GiB."""
    values = np.arange(4096, dtype=np.int64)
    weights = tuple(
        onnx.numpy_helper.from_array(values.reshape(shape), name)
        for name, shape in (("a", (-1, 1, 1)), ("b", (1, -1, 1)), ("c", (1, 1, -1)))
    )
    nodes = [helper.make_node("Max", ["a", "b", "c"], ["m"]), helper.make_node("Reshape", ["x", "m"], ["y"])]
    refuse("predict", save(model_of(nodes, [tensor("x", 1, 4)], [tensor("y", "n")], weights), place / "broadcast.onnx"))


# ── unknown operators ─────────────────────────────────────────────────────────────────────────────────────────────────


def unknown_operator(declared: bool, op: str = "Relu") -> onnx.ModelProto:
    nodes = [helper.make_node(op, ["x"], ["h"], domain="acme.ops"), relu("h", "y")]
    return model_of(
        nodes,
        [tensor("x", "batch", 4)],
        [tensor("y", "batch", 4)],
        infos=(tensor("h", 1, 4),) if declared else (),
        domains=("acme.ops",),
    )


def test_an_unknown_domain_is_refused(refuse: Refuse, place: Path) -> None:
    line = refuse("predict", save(unknown_operator(declared=True), place / "custom.onnx"))
    assert "acme.ops" in line
    assert "--allow-unknown" in line


@pytest.mark.parametrize("op", ["Frobnicate", "Relu"])
def test_an_unknown_domain_is_reported_when_allowed(place: Path, capsys: pytest.CaptureFixture[str], op: str) -> None:
    path = save(unknown_operator(True, op), place / "custom.onnx")
    output = accept(capsys, "inspect", path, "--allow-unknown")
    assert list(output["unknown_operators"]) == [f"acme.ops.{op}"]
    assert 0 < output["unknown_operators"][f"acme.ops.{op}"] < 1
    assert output["coverage"] == pytest.approx(1 - output["unknown_operators"][f"acme.ops.{op}"])
    assert 0 < accept(capsys, "predict", path, "--allow-unknown")["coverage"] < 1


def test_an_unknown_operator_without_a_shape_is_refused_all_the_same(refuse: Refuse, place: Path) -> None:
    line = refuse("predict", save(unknown_operator(declared=False), place / "custom.onnx"), "--allow-unknown")
    assert "shape" in line


def test_an_unknown_operator_in_a_sub_graph_is_found(refuse: Refuse, place: Path) -> None:
    def branch(name: str) -> onnx.GraphProto:
        return helper.make_graph(
            [helper.make_node("Odd", ["x"], [name], domain="acme.ops")], name, [], [tensor(name, 1, 4)]
        )

    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("t"), else_branch=branch("e"))
    inputs = [helper.make_tensor_value_info("c", TensorProto.BOOL, []), tensor("x", 1, 4)]
    assert "acme.ops" in refuse("predict", save(model_of([node], inputs, [tensor("y", 1, 4)]), place / "inner.onnx"))


# ── bombs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def nested(depth: int, op: str) -> onnx.GraphProto:
    """Sub-graphs in sub-graphs, two of them at each level for an If."""
    if depth == 0:
        return helper.make_graph([relu("x", "leaf")], "leaf", [], [tensor("leaf", 1, 4)])
    inner = nested(depth - 1, op)
    name = f"n{depth}"
    if op == "If":
        other = helper.make_graph([relu("x", f"e{depth}")], "else", [], [tensor(f"e{depth}", 1, 4)])
        node = helper.make_node("If", ["c"], [name], then_branch=inner, else_branch=other)
        return helper.make_graph([node], f"g{depth}", [], [tensor(name, 1, 4)])
    cond = helper.make_node("Identity", ["keep"], [f"go{depth}"])
    body_inputs = [
        helper.make_tensor_value_info(f"i{depth}", TensorProto.INT64, []),
        helper.make_tensor_value_info(f"k{depth}", TensorProto.BOOL, []),
    ]
    inner.input.extend(body_inputs)
    inner.output.insert(0, helper.make_tensor_value_info("keep", TensorProto.BOOL, []))
    node = helper.make_node("Loop", ["many", "keep"], [name], body=inner)
    return helper.make_graph([cond, node], f"g{depth}", [], [tensor(name, "n", 1, 4)])


@pytest.mark.parametrize("op", ["If", "Loop"])
@pytest.mark.parametrize("depth", [12, 25, 32])
def test_nested_sub_graphs(
    place: Path, refuse: Refuse, capsys: pytest.CaptureFixture[str], op: str, depth: int
) -> None:
    graph = nested(depth, op)
    graph.input.extend(
        [
            tensor("x", 1, 4),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("keep", TensorProto.BOOL, []),
        ]
    )
    graph.initializer.append(helper.make_tensor("many", TensorProto.INT64, [], [2**31 - 1]))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    try:
        path = save(model, place / "nested.onnx")
    except EncodeError:
        pytest.skip("protobuf itself does not write so deep a model")
    if depth <= 16 and op == "If":
        assert accept(capsys, "predict", path)["latency_ms"]["value"] > 0
    else:
        refuse("predict", path)


def function_bomb(levels: int, calls: int, recursive: bool) -> onnx.ModelProto:
    functions = []
    for level in range(levels):
        callee = f"f{level + 1}" if level + 1 < levels else "f0" if recursive else None
        nodes = (
            [
                helper.make_node(callee, ["x" if i == 0 else f"t{i - 1}"], [f"t{i}"], domain="local")
                for i in range(calls)
            ]
            if callee
            else [relu("x", f"t{calls - 1}")]
        )
        functions.append(
            helper.make_function(
                "local",
                f"f{level}",
                ["x"],
                [f"t{calls - 1}"],
                nodes,
                [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)],
            )
        )
    model = model_of(
        [helper.make_node("f0", ["x"], ["y"], domain="local")],
        [tensor("x", 1, 4)],
        [tensor("y", 1, 4)],
        domains=("local",),
    )
    model.functions.extend(functions)
    return model


def test_functions_that_expand_without_end(refuse: Refuse, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "expand" in refuse("predict", save(function_bomb(60, 2, recursive=False), place / "bomb.onnx"))
    assert "calls itself" in refuse("predict", save(function_bomb(3, 1, recursive=True), place / "loop.onnx"))
    assert accept(capsys, "inspect", save(function_bomb(5, 2, recursive=False), place / "good.onnx"))["nodes"] == 16


# ── external data ─────────────────────────────────────────────────────────────────────────────────────────────────────

OUTSIDE = [
    "/etc/passwd",
    "../secret.bin",
    "a/../../b",
    "..",
    "C:\\secret",
    "c:/x",
    "\\\\host\\share",
    "a\\..\\..\\b",
    "",
]


def with_weight(weight: onnx.TensorProto, where: str) -> onnx.ModelProto:
    add = helper.make_node("Add", ["x", weight.name], ["y"])
    if where == "initializer":
        return model_of([add], [tensor("x", 1, 4)], [tensor("y", 1, 4)], (weight,))
    constant = helper.make_node("Constant", [], [weight.name], value=weight)
    if where == "constant":
        return model_of([constant, add], [tensor("x", 1, 4)], [tensor("y", 1, 4)])
    branch = helper.make_graph([constant, add], "then", [], [tensor("y", 1, 4)])
    other = helper.make_graph([relu("x", "z")], "else", [], [tensor("z", 1, 4)])
    node = helper.make_node("If", ["c"], ["out"], then_branch=branch, else_branch=other)
    inputs = [tensor("x", 1, 4), helper.make_tensor_value_info("c", TensorProto.BOOL, [])]
    return model_of([node], inputs, [tensor("out", 1, 4)])


@pytest.mark.parametrize("where", ["initializer", "constant", "sub-graph"])
def test_external_data_outside_its_folder(
    refuse: Refuse, place: Path, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    for location in OUTSIDE:
        line = refuse("predict", save(with_weight(external("w", location, 4), where), place / "outside.onnx"))
        assert "outside" in line
    inside = save(with_weight(external("w", "weights/w.bin", 4), where), place / "inside.onnx")
    assert accept(capsys, "inspect", inside, "--no-cache")["parameters"] == 4


def test_a_symbolic_link_to_weights_is_never_opened(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "w.bin").symlink_to("/nonexistent/secret")
    path = save(with_weight(external("w", "w.bin", 4), "initializer"), place / "linked.onnx")
    assert accept(capsys, "inspect", path, "--no-cache")["parameters"] == 4
