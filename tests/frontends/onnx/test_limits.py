"""Small ONNX files that ask for too much are refused before anything is allocated, and odd ones get an answer."""

import json
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from math import isfinite
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import foretell
from bad_models import model_of, relu, tensor
from foretell.errors import ModelError
from foretell.frontends.budget import Budget
from foretell.frontends.onnx.checks import check_expansion, check_model
from foretell.units import MIB

LIMIT = 24 * MIB  # of memory that Python allocates while a small file is refused


@contextmanager
def little_memory() -> Iterator[None]:
    """Fail if more than a few MiB are allocated inside."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < LIMIT, f"{peak // MIB} MiB"


def refuse(model: onnx.ModelProto, match: str) -> None:
    with little_memory(), pytest.raises(ModelError, match=match):
        foretell.load_graph(model, use_cache=False)


def integer(name: str, value: int) -> TensorProto:
    return numpy_helper.from_array(np.array(value, np.int64), name)


@pytest.mark.parametrize("inputs", [["x"], ["x", "one"]])
def test_a_split_into_millions_of_pieces(inputs: list[str]) -> None:
    nodes = [
        helper.make_node("SplitToSequence", inputs, ["s"]),
        helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0),
    ]
    refuse(model_of(nodes, [tensor("x", 2**23)], [tensor("y", 2**23)], (integer("one", 1),)), "8388608 pieces")


def test_the_pieces_of_a_split_have_names(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["s" * 16000]),
        helper.make_node("ConcatFromSequence", ["s" * 16000], ["y"], axis=0),
    ]
    monkeypatch.setitem(foretell.frontends.budget.LIMITS, "bytes of names", 2**20)
    refuse(model_of(nodes, [tensor("x", 4000)], [tensor("y", 4000)]), "bytes of names")


def test_a_scan_over_more_inputs_than_it_has() -> None:
    body = helper.make_graph([relu("a", "b")], "body", [tensor("a")], [tensor("b")])
    scan = helper.make_node("Scan", ["x"], ["y"], body=body, num_scan_inputs=2**23)
    refuse(model_of([scan], [tensor("x", 8)], [tensor("y", 8)]), "scans 8388608 of its 1 inputs")


def test_a_scan_over_a_long_axis_is_counted_without_a_loop() -> None:
    body = helper.make_graph([relu("a", "b")], "body", [tensor("a")], [tensor("b")])
    scan = helper.make_node("Scan", ["x"], ["y"], body=body, num_scan_inputs=1)
    with little_memory():
        graph = foretell.load_graph(model_of([scan], [tensor("x", 2**31)], [tensor("y", 2**31)]), use_cache=False)
    assert graph.nodes[0].integer("trips", 0) == 2**31


def test_sequences_that_grow_with_every_node(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [helper.make_node("SequenceEmpty", [], ["s0"])]
    nodes += [helper.make_node("SequenceInsert", [f"s{i}", "x"], [f"s{i + 1}"]) for i in range(200)]
    nodes.append(helper.make_node("ConcatFromSequence", ["s200"], ["y"], axis=0))
    model = model_of(nodes, [tensor("x", 2)], [tensor("y", 400)])
    assert foretell.load_graph(model, use_cache=False).nodes[-1].op == "Concat"
    monkeypatch.setitem(foretell.frontends.budget.LIMITS, "elements", 10_000)
    refuse(model, "more than 10000 elements")


def nested_functions(name: str, depth: int, uses: int) -> onnx.ModelProto:
    """Functions that each call the one before so many times, with this name between the calls."""
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    functions = [helper.make_function("local", "F0", ["a"], ["b"], [relu("a", "b")], opsets)]
    for level in range(1, depth):
        names = ["a", *(f"{name}{i}" for i in range(uses - 1)), "b"]
        calls = [helper.make_node(f"F{level - 1}", [a], [b], domain="local") for a, b in pairwise(names)]
        functions.append(helper.make_function("local", f"F{level}", ["a"], ["b"], calls, opsets))
    model = model_of(
        [helper.make_node(f"F{depth - 1}", ["x"], ["y"], domain="local")], [tensor("x", 2)], [tensor("y", 2)]
    )
    model.functions.extend(functions)
    model.opset_import.extend(opsets[1:])
    return model


def test_long_names_in_nested_functions_count() -> None:
    check_expansion(nested_functions("n", 5, 8), Budget("net"))
    with pytest.raises(ModelError, match=r"functions expanded needs more than .* bytes of names"):
        check_expansion(nested_functions("n" * 16000, 5, 8), Budget("net"))
    refuse(nested_functions("n" * 16000, 5, 8), "bytes of names")
    with pytest.raises(ModelError, match="100000 nodes"):
        check_expansion(nested_functions("n", 60, 2), Budget("net"))


def test_an_attribute_that_a_function_uses_often_counts() -> None:
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    uses = [helper.make_node("Constant", [], [f"c{i}"]) for i in range(1000)]
    for node in uses:
        node.attribute.add(name="value_string", ref_attr_name="text", type=onnx.AttributeProto.STRING)
    function = helper.make_function("local", "F", ["a"], ["b"], [relu("a", "b"), *uses], opsets, attributes=["text"])
    model = model_of([helper.make_node("F", ["x"], ["y"], domain="local", text="t" * 2**20)], [tensor("x", 2)], [])
    model.functions.append(function)
    with pytest.raises(ModelError, match="bytes of attributes"):
        check_expansion(model, Budget("net"))


@pytest.mark.parametrize("kind", ["nodes", "edges", "bytes of names", "bytes of attributes"])
def test_every_kind_is_drawn_before_a_graph_is_read(kind: str) -> None:
    nodes = [relu(f"t{i}", f"t{i + 1}", unused="u" * 50) for i in range(20)]
    model = model_of(nodes, [tensor("t0", 2)], [tensor("t20", 2)])
    check_model(model, allow_unknown=False, budget=Budget("net"))
    limits = {**foretell.frontends.budget.LIMITS, kind: 15}
    with pytest.raises(ModelError, match=f"net needs more than 15 {kind}"):
        check_model(model, allow_unknown=False, budget=Budget("net", limits))


def test_bodies_draw_from_the_same_budget() -> None:
    def branch(name: str) -> onnx.GraphProto:
        return helper.make_graph([relu("x", f"{name}{i}") for i in range(6)], name, [], [tensor(f"{name}0", 2)])

    choice = helper.make_node("If", ["c"], ["y"], then_branch=branch("t"), else_branch=branch("e"))
    model = model_of([choice], [tensor("x", 2), tensor("c")], [tensor("y", 2)])
    with pytest.raises(ModelError, match="10 nodes"):
        check_model(model, allow_unknown=False, budget=Budget("net", {**foretell.frontends.budget.LIMITS, "nodes": 10}))


@pytest.mark.parametrize("axis", [65, 3 * 10**9, 2**63 - 1, -65, -(2**63)])
def test_an_axis_that_no_tensor_has(axis: int) -> None:
    # ONNX's inference cuts it to 32 bits and then writes outside its arrays
    norm = helper.make_node("LayerNormalization", ["x", "x"], ["y", "mean"], axis=axis)
    refuse(model_of([norm], [tensor("x", 2, 3)], [tensor("y", 2, 3)]), f"has the axis {axis}: malformed")


def test_a_long_equation() -> None:
    einsum = helper.make_node("Einsum", ["x"] * 3000, ["y"], equation=",".join("a" * 3000) + "->a")
    refuse(model_of([einsum], [tensor("x", 2)], [tensor("y", 2)]), "an equation of 6002 characters")


def test_a_tensor_with_many_axes() -> None:
    refuse(model_of([relu("x", "y")], [tensor("x", *[1] * 65)], [tensor("y", 1)]), "65 axes")


def test_a_small_tensor_with_much_data() -> None:
    weight = TensorProto(name="s", dims=[1], data_type=TensorProto.INT64)
    weight.int64_data.extend([1] * 2**22)
    model = model_of([helper.make_node("Reshape", ["x", "s"], ["y"])], [tensor("x", 2)], [tensor("y", 2)], (weight,))
    with little_memory():
        foretell.load_graph(model, use_cache=False)


def test_a_node_without_outputs() -> None:
    for outputs in ([], [""]):
        node = helper.make_node("Relu", ["x"], outputs, name="nothing")
        refuse(model_of([node, relu("x", "y")], [tensor("x", 2)], [tensor("y", 2)]), "'nothing' .* has no outputs")


def damaged(model: onnx.ModelProto, text: bytes) -> onnx.ModelProto:
    """The model with a text replaced by bytes that are not UTF-8."""
    return onnx.ModelProto.FromString(model.SerializeToString().replace(text, b"\xff" * len(text)))


def test_bytes_that_are_no_text_as_the_name_of_a_graph() -> None:
    body = helper.make_graph([relu("a", "b")], "INNER", [tensor("a")], [tensor("b")])
    scan = helper.make_node("Scan", ["x"], ["y"], body=body, num_scan_inputs=1)
    model = model_of([scan], [tensor("x", 8)], [tensor("y", 8)])
    model.graph.name = "OUTER"
    refuse(damaged(model, b"INNER"), "is not valid text")
    refuse(damaged(model, b"OUTER"), "is not valid text")


@pytest.mark.parametrize("op", ["TopK", "DFT", "Softmax", "MatMul", "Conv", "GlobalAveragePool", "NonMaxSuppression"])
def test_dimensions_of_zero(op: str) -> None:
    shapes: dict[str, tuple[tuple[int, ...], ...]] = {
        "TopK": ((2, 0),), "DFT": ((1, 0, 1),), "Softmax": ((2, 0),), "MatMul": ((2, 0), (0, 3)),
        "Conv": ((1, 0, 4, 4), (8, 0, 3, 3)), "GlobalAveragePool": ((1, 3, 0, 4),),
        "NonMaxSuppression": ((1, 0, 4), (1, 1, 0)),
    }  # fmt: skip
    weights = [numpy_helper.from_array(np.zeros(s, np.float32), f"w.{i}") for i, s in enumerate(shapes[op])]
    names = [w.name for w in weights] + (["k"] if op == "TopK" else [])
    outputs = ["y", "i"] if op == "TopK" else ["y"]
    nodes = [helper.make_node(op, names, outputs), relu("x", "z")]
    declared = helper.make_tensor_value_info("y", TensorProto.INT64 if op == "NonMaxSuppression" else 1, [0, 3])
    info = (declared,) if op == "NonMaxSuppression" else ()
    k = numpy_helper.from_array(np.zeros(1, np.int64), "k")
    model = model_of(nodes, [tensor("x", 2)], [tensor("z", 2)], (*weights, k), info)
    for mode in ("inference", "training"):
        prediction = foretell.predict(model, mode=mode, use_cache=False)
        json.dumps(prediction.to_dict(), allow_nan=False)


def nested_loops(depth: int, trips: int) -> onnx.ModelProto:
    """Loops in loops around one Relu."""

    def body(level: int) -> onnx.GraphProto:
        inputs = [
            helper.make_tensor_value_info(f"i{level}", TensorProto.INT64, []),
            helper.make_tensor_value_info(f"c{level}", TensorProto.BOOL, []),
            tensor(f"v{level}", 2),
        ]
        inner = (
            helper.make_node("Loop", ["trips", "", f"v{level}"], [f"w{level}"], body=body(level + 1))
            if level < depth - 1
            else relu(f"v{level}", f"w{level}")
        )
        again = helper.make_tensor_value_info(f"d{level}", TensorProto.BOOL, [])
        nodes = [inner, helper.make_node("Identity", [f"c{level}"], [f"d{level}"])]
        return helper.make_graph(nodes, f"body{level}", inputs, [again, tensor(f"w{level}", 2)])

    loop = helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body(0))
    return model_of([loop], [tensor("x", 2)], [tensor("y", 2)], (integer("trips", trips),))


def test_nested_loops_have_finite_costs_or_are_refused() -> None:
    prediction = foretell.predict(nested_loops(2, 1000), use_cache=False)
    assert prediction.latency_ms is not None
    assert isfinite(prediction.latency_ms.value)
    refuse(nested_loops(12, 2**31), "FLOPs, which is impossible")
    json.dumps(foretell.predict(nested_loops(3, 2**30), use_cache=False).to_dict(), allow_nan=False)


def test_a_file_that_is_too_large_is_not_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sparse.onnx"
    with path.open("wb") as file:
        file.write(b"\x08\x0a")
        file.truncate(3 * 2**30)
    monkeypatch.setattr("hashlib.file_digest", lambda *_: pytest.fail("the file was read"))
    with pytest.raises(ModelError, match=r"sparse.onnx has 3221225472 bytes"):
        foretell.predict(str(path))


FOREIGN = ("Attention", "Conv", "MatMul", "Gemm", "TopK", "LSTM", "MaxPool", "Concat", "Transpose", "Split", "Einsum")


@pytest.mark.parametrize("domain", ["org.example", "com.microsoft"])
@pytest.mark.parametrize("op", FOREIGN)
def test_a_foreign_operator_that_is_called_like_a_known_one(op: str, domain: str) -> None:
    """Rules look operators up by name: with one input of one axis, theirs would fail."""
    if domain == "com.microsoft" and op in ("Attention", "Conv", "MaxPool"):
        domain = "com.microsoft.other"  # these are known there
    nodes = [helper.make_node(op, ["x"], ["y", "z"], domain=domain), helper.make_node(op, [], ["v"], domain=domain)]
    infos = tuple(tensor(name, 3) for name in "zv")
    model = model_of(nodes, [tensor("x", 3)], [tensor("y", 3)], infos=infos, domains=(domain,))
    for mode in ("inference", "training"):
        prediction = foretell.predict(model, mode=mode, allow_unknown=True, use_cache=False, batch_size=3)
        json.dumps(prediction.to_dict(), allow_nan=False)
        assert any(f"{domain}.{op}" in warning for warning in prediction.warnings)
        assert prediction.coverage < 1
