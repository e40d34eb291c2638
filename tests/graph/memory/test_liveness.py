"""Peaks of small graphs whose liveness can be read off the page. Every tensor is one block of 512 bytes or more."""

from dataclasses import replace

import pytest

from foretell.graph import Graph, Node, Tensor, inference_peak
from foretell.graph.ir.layout import layouts
from foretell.graph.memory.allocator import BLOCK_BYTES, CachingAllocator, Tape
from foretell.graph.memory.liveness import cached_peak, deaths, inference_tape, live_peak, state_bytes, working_blocks
from foretell.testing import chain, one_node
from foretell.units import MIB

ONE = (128,)  # fp32: exactly one block


def blocks(graph: object) -> int:
    peak = inference_peak(graph)  # type: ignore[arg-type]
    assert peak.bytes % BLOCK_BYTES == 0
    return peak.bytes // BLOCK_BYTES


def test_a_chain_keeps_two_activations() -> None:
    nodes = [Node("a", "Relu", ("x",), ("a",)), Node("b", "Relu", ("a",), ("b",)), Node("c", "Relu", ("b",), ("c",))]
    graph = chain(nodes, dict.fromkeys(["x", "a", "b", "c"], ONE), ["x"], ["c"])
    assert blocks(graph) == 3  # the input, which the caller holds, and two neighbours


def test_a_skip_connection_stays_until_it_is_added() -> None:
    nodes = [
        Node("a", "Relu", ("x",), ("a",)),
        Node("b", "Relu", ("a",), ("b",)),
        Node("c", "Relu", ("b",), ("c",)),
        Node("d", "Add", ("c", "a"), ("d",)),
    ]
    graph = chain(nodes, dict.fromkeys(["x", "a", "b", "c", "d"], ONE), ["x"], ["d"])
    assert blocks(graph) == 4
    assert inference_peak(graph).node == "c"


def test_views_keep_their_storage_and_add_nothing() -> None:
    nodes = [
        Node("a", "Relu", ("x",), ("a",)),
        Node("v", "Reshape", ("a",), ("v",)),
        Node("b", "Relu", ("x",), ("b",)),
        Node("c", "Add", ("v", "b"), ("c",)),
    ]
    shapes = {"x": ONE, "a": ONE, "v": (2, 64), "b": ONE, "c": (2, 64)}
    assert blocks(chain(nodes, shapes, ["x"], ["c"])) == 4


def test_in_place_work_takes_no_memory() -> None:
    nodes = [Node("a", "Relu", ("x",), ("a",)), Node("b", "Relu", ("a",), ("b",), {"inplace": 1})]
    graph = chain(nodes, dict.fromkeys(["x", "a", "b"], ONE), ["x"], ["b"])
    assert blocks(graph) == 2


def test_a_module_holds_its_arguments_while_it_runs() -> None:
    def graph(module: str) -> object:
        nodes = [
            Node("a", "Relu", ("x",), ("a",)),
            Node("b", "Relu", ("a",), ("b",), module=module),
            Node("c", "Relu", ("b",), ("c",), module=module),
            Node("d", "Relu", ("c",), ("d",), module=module),
        ]
        return chain(nodes, dict.fromkeys(["x", "a", "b", "c", "d"], ONE), ["x"], ["d"])

    assert blocks(graph("")) == 3
    assert blocks(graph("block")) == 4  # the caller's frame holds `a` until the block returns


def test_what_is_concatenated_later_is_a_local_variable() -> None:
    def graph(module: str) -> object:
        nodes = [
            Node("a", "Relu", ("x",), ("a",), module=module and f"{module}.down"),
            Node("b", "Relu", ("a",), ("b",), module=module and f"{module}.deep"),
            Node("j", "Concat", ("b", "a"), ("j",), {"axis": 0}, module=module),
            Node("c", "Relu", ("j",), ("c",), module=module and f"{module}.up"),
        ]
        return chain(nodes, {"x": ONE, "a": ONE, "b": ONE, "j": (256,), "c": (256,)}, ["x"], ["c"])

    assert blocks(graph("")) == 5
    assert blocks(graph("net")) == 6


def test_dead_ends_and_absent_outputs() -> None:
    nodes = [Node("a", "TopK", ("x",), ("", "i")), Node("b", "Relu", ("x",), ("b",))]
    graph = chain(nodes, dict.fromkeys(["x", "i", "b"], ONE), ["x"], ["b"])
    assert blocks(graph) == 2  # `i` dies at once
    assert "i" in deaths(graph)[0]


def test_state_is_there_before_and_after() -> None:
    graph = chain([Node("m", "MatMul", ("x", "w"), ("y",))], {"x": (1, 128), "w": (128, 1), "y": (1, 1)}, ["x"], ["y"])
    peak = inference_peak(graph)
    assert peak.state_bytes == state_bytes(graph) == 512
    assert peak.bytes == 3 * 512
    assert peak.activation_bytes == 1024
    body = one_node("Relu", [(128,)], [(128,)])
    control = one_node("Loop", [(128,)], [(128,)], bodies=(body,))
    assert inference_peak(control).bytes == 4 * 512


def test_an_empty_graph_holds_its_input() -> None:
    graph = chain([], {"x": ONE}, ["x"], ["x"])
    assert inference_peak(graph).bytes == 512


@pytest.mark.parametrize(
    ("perm", "copies"),
    [((0, 1, 2, 3), 0), ((0, 2, 1, 3), 1)],  # heads behind tokens: leading axes cannot be folded into one
)
def test_a_batched_product_copies_what_it_cannot_fold(perm: tuple[int, ...], copies: int) -> None:
    shape = (2, 4, 4, 16)
    nodes = [Node("t", "Transpose", ("x",), ("t",), {"perm": perm}), Node("m", "MatMul", ("t", "k"), ("y",))]
    graph = chain(nodes, {"x": shape, "t": shape, "k": (2, 4, 16, 4), "y": (2, 4, 4, 4)}, ["x", "k"], ["y"])
    assert sum(working_blocks(graph, graph.nodes[1], layouts(graph))) == copies * Tensor("", shape).bytes


def test_a_recurrence_transposes_and_keeps_what_lies_between_layers() -> None:
    graph = one_node("LSTM", [(2, 64, 4), (2, 2, 8), (2, 2, 8)], [(2, 64, 8)], batch_first=1, layers=2)
    assert working_blocks(graph, graph.nodes[0], layouts(graph)) == [2 * 64 * 4 * 4, 2 * 64 * 8 * 4]


def test_a_pool_finds_the_indices_of_its_maxima_too():
    plain = one_node("AveragePool", [(1, 64, 32, 32)], [(1, 64, 16, 16)], kernel_shape=(2, 2))
    maxima = one_node("MaxPool", [(1, 64, 32, 32)], [(1, 64, 16, 16)], kernel_shape=(2, 2))
    indices = 64 * 16 * 16 * 8
    assert inference_peak(maxima).bytes == inference_peak(plain).bytes + indices


def test_a_recurrence_of_one_layer_has_nothing_between_layers() -> None:
    graph = one_node("LSTM", [(64, 2, 4), (1, 2, 8), (1, 2, 8)], [(64, 2, 8)])
    assert working_blocks(graph, graph.nodes[0], layouts(graph)) == []
    first = one_node("LSTM", [(2, 64, 4), (1, 2, 8), (1, 2, 8)], [(2, 64, 8)], batch_first=1, layers=1)
    assert working_blocks(first, first.nodes[0], layouts(first)) == [2 * 64 * 4 * 4]


@pytest.mark.parametrize(
    ("op", "perm", "copies"),
    [
        ("MatMul", (1, 0, 2), 0),  # one leading axis: there is nothing to fold
        ("Gemm", (1, 0, 2), 1),  # a linear layer folds the rows too
        ("Gemm", (0, 1, 2), 0),
    ],
)
def test_of_rank_three_only_a_linear_layer_copies(op: str, perm: tuple[int, ...], copies: int) -> None:
    turned = {(0, 1, 2): (3, 5, 8), (1, 0, 2): (5, 3, 8)}[perm]
    nodes = [Node("t", "Transpose", ("x",), ("t",), {"perm": perm}), Node("m", op, ("t", "w"), ("y",))]
    weight = (8, 4) if op == "Gemm" else (5, 8, 4)
    graph = chain(nodes, {"x": (3, 5, 8), "t": turned, "w": weight, "y": (*turned[:2], 4)}, ["x"], ["y"])
    assert sum(working_blocks(graph, graph.nodes[1], layouts(graph))) == copies * Tensor("", turned).bytes


def test_the_outermost_module_holds_a_tensor_that_was_passed_down() -> None:
    nodes = [
        Node("a", "Relu", ("x",), ("a",)),
        Node("b", "Relu", ("a",), ("b",), module="outer.inner"),
        Node("c", "Relu", ("b",), ("c",), module="outer.inner"),
        Node("d", "Relu", ("c",), ("d",), module="outer"),
        Node("e", "Relu", ("d",), ("e",), module="outer"),
        Node("f", "Relu", ("e",), ("f",)),
    ]
    graph = chain(nodes, dict.fromkeys(["x", *"abcdef"], ONE), ["x"], ["f"])
    ends = {name: position for position, names in deaths(graph).items() for name in names}
    assert ends["a"] == 4  # `outer` was handed it, and returns after `e`
    assert ends["b"] == 2  # made and read within one module: dead after its reader
    assert ends["c"] == 3
    assert ends["x"] == ends["f"] == len(nodes)


def test_only_state_that_holds_anything_is_allocated() -> None:
    nodes = [Node("a", "Mul", ("x", "w1"), ("y",))]
    graph = chain(nodes, {"x": ONE, "w1": ONE, "w2": (0,), "w3": (129,), "y": ONE}, ["x"], ["y"])
    assert state_bytes(graph) == 3 * 512
    tensors = [Tensor("x", ONE, kind="input"), Tensor("b", ONE, kind="buffer"), Tensor("c", ONE, kind="constant"),
               Tensor("y", ONE), Tensor("z", ONE)]  # fmt: skip
    nodes = [Node("a", "Mul", ("x", "b"), ("y",)), Node("d", "Mul", ("y", "c"), ("z",))]
    assert state_bytes(Graph.build("g", nodes, {t.name: t for t in tensors}, ["x"], ["z"])) == 2 * 512
    looped = one_node("Loop", [(128,)], [(128,)], bodies=(graph,))
    assert state_bytes(looped) == 3 * 512


def test_kept_blocks_count_as_state() -> None:
    graph = chain([Node("a", "Mul", ("x", "w"), ("y",))], {"x": ONE, "w": ONE, "y": ONE}, ["x"], ["y"])
    tape = inference_tape(graph)
    plain, with_states = live_peak(graph, tape), live_peak(graph, tape, [512, 1])
    assert (plain.bytes, plain.state_bytes, plain.node) == (3 * 512, 512, "a")
    assert (with_states.bytes, with_states.state_bytes) == (5 * 512, 3 * 512)


def test_the_allocator_counts_model_input_workspaces_and_run() -> None:
    large = (3 * MIB // 4,)
    graph = chain([Node("a", "Mul", ("x", "w"), ("y",))], dict.fromkeys("xwy", large), ["x"], ["y"])
    tape = inference_tape(graph)
    peak = cached_peak(graph, tape)
    assert (peak.bytes, peak.state_bytes, peak.node) == (9 * MIB, 3 * MIB, "a")
    assert cached_peak(graph, tape, workspaces=[32 * MIB, MIB]).bytes == 42 * MIB
    with_blocks = cached_peak(graph, tape, persistent=[3 * MIB, 3 * MIB])
    assert (with_blocks.bytes, with_blocks.state_bytes) == (15 * MIB, 9 * MIB)  # the second run finds the states there


def test_the_first_run_may_be_the_larger_one() -> None:
    """A block that the first run is handed whole is split for what is kept, and the second run gets less."""
    tape = Tape()
    tape.begin("only")
    tape.free(tape.allocate(11 * MIB))
    graph = chain([], {"x": ONE}, ["x"], ["x"])
    assert CachingAllocator().replay(tape) == (12 * MIB, "only")  # 1 MiB more than it asked for
    assert cached_peak(graph, tape).bytes == 12 * MIB + 512
    assert cached_peak(graph, tape, persistent=[512]).bytes == 12 * MIB + 1024


def test_library_workspaces_are_taken_on_cuda_alone() -> None:
    graph = one_node("Conv", [(1, 64, 16, 16), (64, 64, 3, 3)], [(1, 64, 16, 16)], weights=[1])
    assert inference_tape(graph).peak()[0] == 64 * 256 * 4
    assert inference_tape(graph, cuda=True).peak()[0] == 64 * 256 * 4 + 4 * (64 * 256 + 64 * 64 * 9)


@pytest.mark.parametrize("op", ["MaxPool", "AdaptiveMaxPool"])
def test_a_pool_that_gives_its_indices_needs_no_others(op: str) -> None:
    one = one_node(op, [(1, 1, 4, 4)], [(1, 1, 2, 2)])
    two = one_node(op, [(1, 1, 4, 4)], [(1, 1, 2, 2), (1, 1, 2, 2)])
    assert working_blocks(one, one.nodes[0], layouts(one)) == [4 * 8]
    assert working_blocks(two, two.nodes[0], layouts(two)) == []


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_every_recurrence_keeps_what_lies_between_layers(op: str) -> None:
    graph = one_node(op, [(64, 2, 4), (3, 2, 8)], [(64, 2, 8)], layers=3)
    assert working_blocks(graph, graph.nodes[0], layouts(graph)) == [64 * 2 * 8 * 4]
    unused = chain([Node("r", op, ("x",), ("", "h"), {"layers": 3})], {"x": (64, 2, 4), "h": (3, 2, 4)}, ["x"], ["h"])
    assert working_blocks(unused, unused.nodes[0], layouts(unused)) == []


def test_both_operands_of_a_product_may_be_copied_and_flat_results_need_none() -> None:
    shape = (2, 4, 4, 16)
    nodes = [
        Node("t", "Transpose", ("x",), ("t",), {"perm": (0, 2, 1, 3)}),
        Node("u", "Transpose", ("z",), ("u",), {"perm": (0, 2, 3, 1)}),
        Node("m", "MatMul", ("t", "u"), ("y",)),
        Node("n", "Mul", ("t", "t"), ("q",)),
    ]
    shapes = {"x": shape, "z": shape, "t": shape, "u": (2, 4, 16, 4), "y": (2, 4, 4, 4), "q": shape}
    graph = chain(nodes, shapes, ["x", "z"], ["y", "q"])
    assert working_blocks(graph, graph.nodes[2], layouts(graph)) == [2048, 2048]
    assert working_blocks(graph, graph.nodes[3], layouts(graph)) == []
    flat = [Node("t", "Transpose", ("x",), ("t",), {"perm": (1, 0)}), Node("m", "Gemm", ("t", "w"), ("y",))]
    graph = chain(flat, {"x": (8, 4), "t": (4, 8), "w": (8, 4), "y": (4, 4)}, ["x"], ["y"])
    assert working_blocks(graph, graph.nodes[1], layouts(graph)) == []


def ends_of(nodes: list[Node], outputs: list[str]) -> dict[str, int]:
    """For each tensor the position after which it is dead; all are one block."""
    names = dict.fromkeys(name for node in nodes for name in (*node.inputs, *node.outputs))
    graph = chain(nodes, dict.fromkeys(names, ONE), ["x"], outputs)
    return {name: position for position, death in deaths(graph).items() for name in death}


def test_a_tensor_made_in_the_frame_that_concatenates_it_dies_there() -> None:
    """Made in the frame that concatenates it, a tensor dies there; made in a module before, it is a local variable."""
    made_here = [
        Node("a", "Relu", ("x",), ("a",), module="net"),
        Node("b", "Relu", ("a",), ("b",), module="net.deep"),
        Node("j", "Max", ("b", "a"), ("j",), module="net"),
        Node("k", "Concat", ("a", "j"), ("k",), module="net"),
        Node("c", "Relu", ("k",), ("c",), module="net.up"),
        Node("e", "Relu", ("c",), ("e",)),
    ]
    assert ends_of(made_here, ["e"])["a"] == 3
    made_before = [Node("a", "Relu", ("x",), ("a",), module="net.down"), *made_here[1:]]
    assert ends_of(made_before, ["e"])["a"] == 4  # until `net` returns
    at_the_top = [Node(n.name, n.op, n.inputs, n.outputs, module=n.module.removeprefix("net").lstrip("."))
                  for n in made_before]  # fmt: skip
    assert ends_of(at_the_top, ["e"])["a"] == len(at_the_top)  # until the program ends
    deeper = [Node(n.name, n.op, n.inputs, n.outputs, module=f"model.{n.module}".rstrip(".")) for n in made_before]
    assert ends_of([*deeper, Node("f", "Relu", ("e",), ("f",))], ["f"])["a"] == 4  # `net` again, not the model


def test_read_once_a_concatenated_tensor_is_no_local_variable() -> None:
    nodes = [
        Node("a", "Relu", ("x",), ("a",), module="net.down"),
        Node("b", "Relu", ("x",), ("b",), module="net"),
        Node("k", "Concat", ("a", "b"), ("k",), module="net"),
        Node("c", "Relu", ("k",), ("c",), module="net.up"),
    ]
    assert ends_of(nodes, ["c"])["a"] == 2


def test_a_module_that_is_entered_twice_holds_only_while_it_runs() -> None:
    nodes = [
        Node("a", "Relu", ("x",), ("a",)),
        Node("b", "Relu", ("a",), ("b",), module="block"),
        Node("c", "Relu", ("b",), ("c",), module="block"),
        Node("d", "Relu", ("c",), ("d",)),
        Node("e", "Relu", ("d",), ("e",), module="block"),
    ]
    ends = ends_of(nodes, ["e"])
    assert (ends["a"], ends["b"], ends["c"], ends["d"]) == (2, 2, 3, 4)


def test_modules_of_one_name_in_different_places_are_not_the_same() -> None:
    """`first.body` and `second.body` share nothing: what the second is handed, it holds until it returns."""
    nodes = [
        Node("a", "Relu", ("x",), ("a",), module="first.body"),
        Node("b", "Relu", ("a",), ("b",), module="second.body"),
        Node("c", "Relu", ("b",), ("c",), module="second.tail"),
        Node("d", "Relu", ("c",), ("d",), module="second"),
    ]
    assert ends_of(nodes, ["d"])["a"] == 3


def test_what_a_program_was_seen_to_hold_is_not_guessed() -> None:
    nodes = [
        Node("a", "Relu", ("x",), ("a",)),
        Node("b", "Relu", ("a",), ("b",)),
        Node("c", "Relu", ("b",), ("c",)),
        Node("d", "Relu", ("c",), ("d",)),
    ]
    graph = chain(nodes, dict.fromkeys("xabcd", ONE), ["x"], ["d"])
    assert blocks(graph) == blocks(replace(graph, held={})) == 3
    assert blocks(replace(graph, held={"a": "c"})) == 4
    assert blocks(replace(graph, held={"a": "d", "b": "d"})) == 5
    # a node that is not there any more holds nothing
    assert blocks(replace(graph, held={"a": "gone"})) == 3


def test_modules_hold_nothing_where_a_program_was_watched() -> None:
    nodes = [
        Node("a", "Relu", ("x",), ("a",)),
        Node("b", "Relu", ("a",), ("b",), module="m"),
        Node("c", "Relu", ("b",), ("c",), module="m"),
    ]
    graph = chain(nodes, dict.fromkeys("xabc", ONE), ["x"], ["c"])
    assert deaths(graph)[2] == ["a", "b"]
    assert deaths(replace(graph, held={}))[1] == ["a"]
