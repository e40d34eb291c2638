"""ONNX files of many shapes and ages become graphs with exact costs."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from foretell.errors import GraphError, InputError, ModelError
from foretell.frontends import ModelRequest
from foretell.frontends.normalise import pipeline as normalise
from foretell.frontends.onnx import frontend as onnx_frontend
from foretell.graph import Graph, graph_costs
from foretell.testing import tiny_onnx
from foretell.workflows.workload import load_graph

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def value(name: str, *shape: int | str, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def weight(name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.arange(math.prod(shape), dtype=np.float32).reshape(shape), name)


def integers(name: str, numbers: Any) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(numbers, np.int64), name)


def model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[str],
    weights: tuple[onnx.TensorProto, ...] = (),
    opset: int = 18,
    domains: tuple[str, ...] = (),
) -> onnx.ModelProto:
    made = [onnx.ValueInfoProto(name=o) for o in outputs]
    graph = helper.make_graph(nodes, "made", inputs, made, list(weights))
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def macs(graph: Graph) -> int:
    return graph_costs(graph).total.macs


def shape(graph: Graph, name: str) -> tuple[int, ...]:
    return graph.tensors[name].shape


def test_a_file_a_path_and_an_object_are_the_same(tmp_path: Path) -> None:
    path = tmp_path / "tiny.onnx"
    onnx.save(tiny_onnx(), path)
    graphs = [load_graph(str(path)), load_graph(path), load_graph(tiny_onnx())]
    assert {g.hash for g in graphs} == {graphs[0].hash}
    assert macs(graphs[0]) == 8 * 14 * 14 * 27 + 32


@pytest.mark.parametrize("batch", [1, 5, "batch"])
@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_any_batch_from_any_file(batch: int | str, batch_size: int) -> None:
    graph, exact = (
        load_graph(tiny_onnx(batch), batch_size=batch_size),
        load_graph(tiny_onnx(batch_size), batch_size=batch_size),
    )
    assert {n: t.shape for n, t in graph.tensors.items()} == {n: t.shape for n, t in exact.tensors.items()}
    assert graph_costs(graph).total == graph_costs(exact).total
    assert graph.hash == exact.hash


def test_weights_among_the_inputs_are_no_inputs() -> None:
    proto = model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [value("x", "n", 4), value("w", 4, 6)],
        ["y"],
        (weight("w", 4, 6),),
    )
    graph = load_graph(proto, batch_size=3)
    assert graph.inputs == ("x",)
    assert (graph.parameter_count, macs(graph)) == (24, 72)


def test_nodes_out_of_order_are_put_right() -> None:
    nodes = [helper.make_node("Relu", ["a"], ["y"]), helper.make_node("Neg", ["x"], ["a"])]
    assert [n.op for n in load_graph(model(nodes, [value("x", 1, 4)], ["y"])).nodes] == ["Neg", "Relu"]


def test_nodes_of_one_name_stay_apart() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"], name="same"), helper.make_node("Relu", ["a"], ["y"], name="same")]
    assert len({n.name for n in load_graph(model(nodes, [value("x", 1, 4)], ["y"])).nodes}) == 2


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_convolutions_of_every_rank(rank: int) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 2 * rank),
        helper.make_node("ConvTranspose", ["y", "u"], ["z"], strides=[2] * rank),
    ]
    sides = [8] * rank
    graph = load_graph(
        model(
            nodes, [value("x", "n", 3, *sides)], ["z"], (weight("w", 5, 3, *[3] * rank), weight("u", 5, 2, *[2] * rank))
        ),
        batch_size=2,
    )
    assert shape(graph, "z") == (2, 2, *[16] * rank)
    assert macs(graph) == 2 * 8**rank * (5 * 3 * 3**rank + 5 * 2 * 2**rank)


def test_einsum() -> None:
    nodes = [helper.make_node("Einsum", ["q", "k"], ["s"], equation="bhid,bhjd->bhij")]
    graph = load_graph(model(nodes, [value("q", "b", 2, 5, 4), value("k", "b", 2, 7, 4)], ["s"]), batch_size=3)
    assert shape(graph, "s") == (3, 2, 5, 7)
    assert macs(graph) == 3 * 2 * 5 * 7 * 4


@pytest.mark.parametrize("form", ["scales", "sizes", "scales-13", "upsample-9", "upsample-7", "computed"])
def test_resize_in_all_forms(form: str) -> None:
    scales = numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales")
    sizes, opset = integers("sizes", [1, 3, 16, 16]), 18
    nodes = {
        "scales": [helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear")],
        "sizes": [helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode="nearest")],
        "scales-13": [helper.make_node("Resize", ["x", "roi", "scales"], ["y"], mode="cubic")],
        "upsample-9": [helper.make_node("Upsample", ["x", "scales"], ["y"], mode="nearest")],
        "upsample-7": [helper.make_node("Upsample", ["x"], ["y"], mode="nearest", scales=[1.0, 1.0, 2.0, 2.0])],
        "computed": [
            helper.make_node("Shape", ["x"], ["s"]),
            helper.make_node("Slice", ["s", "zero", "two"], ["lead"]),
            helper.make_node("Concat", ["lead", "side"], ["all"], axis=0),
            helper.make_node("Resize", ["x", "", "", "all"], ["y"]),
        ],
    }[form]
    opset = {"upsample-9": 9, "upsample-7": 7, "scales-13": 13}.get(form, 18)
    empty = numpy_helper.from_array(np.zeros(0, np.float32), "roi")
    weights = (scales, sizes, empty, integers("zero", [0]), integers("two", [2]), integers("side", [16, 16]))
    graph = load_graph(model(nodes, [value("x", 1, 3, 8, 8)], ["y"], weights, opset))
    assert shape(graph, "y") == (1, 3, 16, 16)
    assert graph.parameter_count == 0
    assert shape(graph.with_batch(4), "y") == (4, 3, 16, 16)


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_recurrent_layers(op: str, direction: str) -> None:
    gates, directions = {"LSTM": 4, "GRU": 3, "RNN": 1}[op], 1 + (direction == "bidirectional")
    nodes = [helper.make_node(op, ["x", "w", "r", "b"], ["y", "h"], hidden_size=6, direction=direction)]
    weights = (
        weight("w", directions, gates * 6, 5),
        weight("r", directions, gates * 6, 6),
        weight("b", directions, 2 * gates * 6),
    )
    graph = load_graph(model(nodes, [value("x", 9, "batch", 5)], ["y", "h"], weights), batch_size=4)
    assert shape(graph, "x") == (9, 4, 5)
    assert shape(graph, "y") == (9, directions, 4, 6)
    assert shape(graph, "h") == (directions, 4, 6)
    assert macs(graph) == 9 * 4 * directions * gates * 6 * (5 + 6)


def test_a_known_condition_takes_its_branch() -> None:
    def branch(name: str, op: str) -> onnx.GraphProto:
        return helper.make_graph([helper.make_node(op, ["x", "w"], [name])], name, [], [value(name, 1, 4)])

    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("t", "MatMul"), else_branch=branch("e", "Add"))
    weights = (numpy_helper.from_array(np.array(False), "c"), weight("w", 4, 4))
    assert macs(load_graph(model([node], [value("x", 1, 4)], ["y"], weights))) == 0
    unknown = load_graph(model([node], [value("x", "n", 4), value("c", kind=BOOL)], ["y"], weights[1:]), batch_size=3)
    assert macs(unknown) == 3 * 16


def test_a_loop_is_counted_as_often_as_it_runs() -> None:
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["s", "w"], ["t"]),
            helper.make_node("Identity", ["k"], ["k2"]),
            helper.make_node("Relu", ["t"], ["o"]),
        ],
        "body",
        [value("i", kind=INT64), value("k", kind=BOOL), value("s", "n", 4)],
        [value("k2", kind=BOOL), value("t", "n", 4), value("o", "n", 4)],
    )
    node = helper.make_node("Loop", ["m", ""], ["last", "all"], body=body)
    node.input[1] = "go"
    initializers = (
        integers("m", 7),
        numpy_helper.from_array(np.array(True), "go"),
        weight("w", 4, 4),
        weight("x0", 2, 4),
    )
    graph = load_graph(
        model(
            [
                helper.make_node("Neg", ["x"], ["x1"]),
                helper.make_node("Loop", ["m", "go", "x1"], ["last", "all"], body=body),
            ],
            [value("x", "n", 4)],
            ["last", "all"],
            initializers,
        ),
        batch_size=3,
    )
    assert shape(graph, "all") == (7, 3, 4)
    assert shape(graph, "last") == (3, 4)
    assert macs(graph) == 7 * 3 * 16
    assert macs(graph.with_batch(6)) == 7 * 6 * 16


def test_a_scan_walks_along_an_axis() -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "e"], ["s2"]), helper.make_node("MatMul", ["e", "w"], ["o"])],
        "body",
        [value("s", 3, 4), value("e", 3, 4)],
        [value("s2", 3, 4), value("o", 3, 5)],
    )
    node = helper.make_node("Scan", ["s0", "x"], ["end", "all"], body=body, num_scan_inputs=1)
    graph = load_graph(model([node], [value("x", 6, 3, 4)], ["end", "all"], (weight("s0", 3, 4), weight("w", 4, 5))))
    assert shape(graph, "all") == (6, 3, 5)
    assert shape(graph, "end") == (3, 4)
    assert macs(graph) == 6 * 3 * 4 * 5


def test_sequences_are_followed_by_name() -> None:
    nodes = [
        helper.make_node("SplitToSequence", ["x", "two"], ["s"], axis=1),
        helper.make_node("SequenceAt", ["s", "one"], ["a"]),
        helper.make_node("SequenceInsert", ["s", "a"], ["s2"]),
        helper.make_node("SequenceErase", ["s2", "one"], ["s3"]),
        helper.make_node("ConcatFromSequence", ["s3"], ["y"], axis=1),
        helper.make_node("ConcatFromSequence", ["s2"], ["z"], axis=0, new_axis=1),
    ]
    graph = load_graph(
        model(nodes, [value("x", "n", 6)], ["y", "z"], (integers("two", 2), integers("one", 1))), batch_size=5
    )
    assert shape(graph, "y") == (5, 6)
    assert shape(graph, "z") == (4, 5, 2)


def test_local_functions_are_expanded() -> None:
    body = [helper.make_node("MatMul", ["a", "b"], ["m"]), helper.make_node("Relu", ["m"], ["r"])]
    function = helper.make_function("local", "Layer", ["a", "b"], ["r"], body, [helper.make_opsetid("", 18)])
    calls = [
        helper.make_node("Layer", ["x", "w"], ["h"], domain="local"),
        helper.make_node("Layer", ["h", "w"], ["y"], domain="local"),
    ]
    proto = model(calls, [value("x", "n", 4)], ["y"], (weight("w", 4, 4),), domains=("local",))
    proto.functions.append(function)
    graph = load_graph(proto, batch_size=2)
    assert [n.op for n in graph.nodes] == ["MatMul", "Relu", "MatMul", "Relu"]
    assert (macs(graph), graph.parameter_count) == (64, 16)


def test_half_precision() -> None:
    weights = numpy_helper.from_array(np.ones((4, 6), np.float16), "w")
    graph = load_graph(
        model(
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            [value("x", "n", 4, kind=TensorProto.FLOAT16)],
            ["y"],
            (weights,),
        )
    )
    assert (graph.dtype, graph.tensors["w"].bytes) == ("fp16", 48)


def test_weights_in_a_file_of_their_own(tmp_path: Path) -> None:
    proto = model([helper.make_node("MatMul", ["x", "w"], ["y"])], [value("x", "n", 64)], ["y"], (weight("w", 64, 32),))
    onnx.save(proto, tmp_path / "big.onnx", save_as_external_data=True, location="big.data", size_threshold=0)
    whole_file = load_graph(tmp_path / "big.onnx", use_cache=False)
    (tmp_path / "big.data").unlink()
    assert load_graph(tmp_path / "big.onnx", use_cache=False).hash == whole_file.hash
    assert whole_file.parameter_count == 2048


def test_dimensions_shared_by_name() -> None:
    inputs = [
        value("ids", "batch", "seq", kind=INT64),
        value("mask", "batch", "seq"),
        value("past", "batch", 2, "ctx", 4),
        value("all", "batch", "seq + ctx"),
    ]
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["e"]),
        helper.make_node("ReduceMean", ["e", "last"], ["r"], keepdims=0),
        helper.make_node("Mul", ["r", "mask"], ["y"]),
        helper.make_node("Relu", ["past"], ["p"]),
        helper.make_node("Relu", ["all"], ["q"]),
    ]
    proto = model(nodes, inputs, ["y", "p", "q"], (weight("table", 10, 4), integers("last", [-1])))
    graph = load_graph(proto, input_shape={"past": (2, 9, 4), "mask": (7,)}, batch_size=3)
    assert {i: shape(graph, i) for i in graph.inputs} == {
        "ids": (3, 7),
        "mask": (3, 7),
        "past": (3, 2, 9, 4),
        "all": (3, 16),
    }
    with pytest.raises(InputError, match="open dimensions"):
        load_graph(proto, input_shape={"mask": (7,)})
    with pytest.raises(InputError, match="'seq' is 7 in one input and 8"):
        load_graph(proto, input_shape={"mask": (7,), "ids": (8,), "past": (2, 9, 4)})


def test_an_input_without_the_batch_keeps_its_size() -> None:
    nodes = [helper.make_node("Add", ["x", "positions"], ["y"])]
    for first in ("batch", 1):
        graph = load_graph(model(nodes, [value("x", first, 6, 4), value("positions", 6, 4)], ["y"]), batch_size=5)
        assert (shape(graph, "y"), shape(graph, "positions")) == ((5, 6, 4), (6, 4))


def _graph_network(nodes: int | str, edges: int | str) -> onnx.ModelProto:
    gathered = [helper.make_node("Gather", ["x", "edges"], ["y"], axis=0)]
    return model(gathered, [value("x", nodes, 6), value("edges", 2, edges, kind=TensorProto.INT64)], ["y"])


def test_nodes_of_a_graph_network_are_no_batch() -> None:
    graph = load_graph(_graph_network(22, 70))
    assert (graph.batch_size, shape(graph, "x"), shape(graph, "y")) == (1, (22, 6), (2, 70, 6))
    assert "no common first axis" in graph.warnings[0]
    with pytest.raises(InputError, match="has no batch"):
        load_graph(_graph_network(22, 70), batch_size=8)


def test_an_open_axis_that_is_no_batch_is_asked_for() -> None:
    proto = _graph_network("nodes", "edges")
    with pytest.raises(InputError, match=r"open axis 'nodes' of the input 'x' is no batch.*--input x=2708x6!"):
        load_graph(proto, input_shape={"edges": (70,)})
    graph = load_graph(proto, input_shape=["x=22x6!", "edges=2x70!"])
    assert (shape(graph, "y"), graph.warnings) == ((2, 70, 6), ())
    with pytest.raises(InputError, match="must have all 2"):
        load_graph(proto, input_shape=["x=6!", "edges=2x70!"])


def test_a_batch_that_the_file_fixes_halfway() -> None:
    """The input is open and a Reshape inside is not: the file is read at the one batch that it allows."""
    nodes = [helper.make_node("Reshape", ["x", "s"], ["y"])]
    graph = load_graph(model(nodes, [value("x", "batch", 6)], ["y"], (integers("s", [1, 2, 3]),)))
    assert shape(graph, "y") == (1, 2, 3)


def test_parameters_are_what_is_trained() -> None:
    nodes = [
        helper.make_node("BatchNormalization", ["x", "scale", "bias", "mean", "var"], ["b"]),
        helper.make_node("Mul", ["b", "one"], ["y"]),
    ]
    weights = (*(weight(n, 4) for n in ("scale", "bias", "mean", "var")), weight("one", 1))
    graph = load_graph(model(nodes, [value("x", "n", 4, 5, 5)], ["y"], weights))
    assert graph.parameter_count == 8
    assert {n: t.kind for n, t in graph.tensors.items() if n in ("mean", "one")} == {
        "mean": "buffer",
        "one": "constant",
    }


def test_a_bias_of_zeros_is_a_bias_and_made_up_zeros_are_none() -> None:
    zeros = numpy_helper.from_array(np.zeros(5, np.float32), "conv.bias")
    plain = [helper.make_node("Conv", ["x", "w", "conv.bias"], ["y"])]
    assert (
        load_graph(model(plain, [value("x", "n", 3, 8, 8)], ["y"], (weight("w", 5, 3, 3, 3), zeros))).parameter_count
        == 140
    )
    filler = [helper.make_node("ConstantOfShape", ["five"], ["z"]), helper.make_node("Conv", ["x", "w", "z"], ["y"])]
    graph = load_graph(
        model(filler, [value("x", "n", 3, 8, 8)], ["y"], (weight("w", 5, 3, 3, 3), integers("five", [5])))
    )
    assert (graph.parameter_count, len(graph.nodes), graph.nodes[0].inputs) == (135, 1, ("x", "w"))


def test_a_weight_is_never_folded_away() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"], axis=0),
        helper.make_node("Concat", ["n", "rest"], ["e"], axis=0),
        helper.make_node("Expand", ["cls", "e"], ["token"]),
        helper.make_node("Concat", ["token", "x"], ["y"], axis=1),
    ]
    graph = load_graph(
        model(
            nodes,
            [value("x", "n", 4, 16)],
            ["y"],
            (weight("cls", 1, 1, 16), integers("zero", [0]), integers("rest", [1, 16])),
        ),
        batch_size=3,
    )
    assert graph.parameter_count == 16
    assert (shape(graph, "token"), shape(graph, "y")) == ((3, 1, 16), (3, 5, 16))


def test_a_learned_number_counts_and_a_constant_does_not() -> None:
    nodes = [helper.make_node("Mul", ["x", "block.0.gain"], ["a"]), helper.make_node("Add", ["a", "eps"], ["y"])]
    graph = load_graph(model(nodes, [value("x", "n", 4)], ["y"], (weight("block.0.gain"), weight("eps"))))
    assert graph.parameter_count == 1


def test_quantised_weights_count_and_their_scales_do_not() -> None:
    weights = (
        numpy_helper.from_array(np.ones((5, 3, 3, 3), np.int8), "w"),
        weight("ws", 5),
        numpy_helper.from_array(np.zeros(5, np.int8), "wz"),
        numpy_helper.from_array(np.ones(5, np.int32), "b"),
        weight("bs", 5),
    )
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wf"], axis=0),
        helper.make_node("DequantizeLinear", ["b", "bs"], ["bf"], axis=0),
        helper.make_node("Conv", ["x", "wf", "bf"], ["y"]),
    ]
    graph = load_graph(model(nodes, [value("x", "n", 3, 8, 8)], ["y"], weights))
    assert graph.parameter_count == 135 + 5
    assert macs(graph) == 6 * 6 * 135


def test_a_chain_of_many_nodes() -> None:
    count = 3000
    nodes = [helper.make_node("Relu", [f"t{i}"], [f"t{i + 1}"]) for i in range(count)]
    graph = load_graph(model(nodes, [value("t0", "n", 4)], [f"t{count}"]))
    assert len(graph.nodes) == count


@pytest.mark.slow
def test_a_chain_of_a_hundred_thousand_nodes(tmp_path: Path) -> None:
    from foretell import predict

    nodes = [helper.make_node("Relu", [f"t{i}"], [f"t{i + 1}"], name=f"n{i}") for i in range(100_000)]
    onnx.save(model(nodes, [value("t0", "n", 4)], ["t100000"]), tmp_path / "chain.onnx")
    assert predict(str(tmp_path / "chain.onnx")).latency_ms.value > 0


def test_a_bad_model_object_raises() -> None:
    with pytest.raises(ModelError, match="no outputs"):
        load_graph(onnx.ModelProto())
    with pytest.raises((ModelError, GraphError)):
        load_graph(model([helper.make_node("Conv", ["x", "x"], ["y"])], [value("x", 1, 4)], ["y"]))


def swish(producer: str, *, graph_name: str = "g", layers: int = 1) -> onnx.ModelProto:
    """A multiplication by the own sigmoid, as converters spell it."""
    nodes, entry = [], "x"
    for i in range(layers):
        nodes += [helper.make_node("Sigmoid", [entry], [f"s{i}"]), helper.make_node("Mul", [entry, f"s{i}"], [f"y{i}"])]
        entry = f"y{i}"
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 8]) for name in ("x", entry)]
    graph = helper.make_graph(nodes, graph_name, values[:1], values[1:])
    return helper.make_model(graph, producer_name=producer, opset_imports=[helper.make_opsetid("", 18)])


def test_what_a_framework_s_converter_has_written_gets_the_usual_form(tmp_path: Path) -> None:
    for producer in ("tf2onnx", "jax2onnx"):
        assert load_graph(swish(producer)).operator_counts == {"Silu": 1}
    assert load_graph(swish("", graph_name="PaddlePaddle Graph in PIR mode")).operator_counts == {"Silu": 1}
    assert load_graph(swish("pytorch")).operator_counts == {"Sigmoid": 1, "Mul": 1}
    onnx.save(swish("tf2onnx"), tmp_path / "m.onnx")
    assert load_graph(tmp_path / "m.onnx").operator_counts == {"Silu": 1}


def test_a_model_that_cannot_be_normalised_is_read_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(graph: Graph) -> Graph:
        raise KeyError("odd")

    monkeypatch.setattr(normalise, "normalise_converted", fails)
    graph = load_graph(swish("tf2onnx"))
    assert graph.operator_counts == {"Sigmoid": 1, "Mul": 1}
    assert "could not be normalised (KeyError)" in graph.warnings[-1]


def test_cached_graphs_depend_on_the_normalisation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(tiny_onnx(), tmp_path / "m.onnx")
    request = ModelRequest(str(tmp_path / "m.onnx"))
    before = onnx_frontend.OnnxFrontend().fingerprint(request)
    monkeypatch.setattr(onnx_frontend, "NORMALISER_VERSION", onnx_frontend.NORMALISER_VERSION + 1)
    assert onnx_frontend.OnnxFrontend().fingerprint(request) != before
