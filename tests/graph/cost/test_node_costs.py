"""Bytes, launches, tensor cores, and the sums people ask for."""

from dataclasses import fields

import pytest

from foretell.errors import GraphError
from foretell.graph import Cost, Graph, Node, Tensor, graph_costs
from foretell.graph.cost.node_costs import _reached_share, total
from foretell.graph.ir.passes import in_tf32
from foretell.testing import chain, one_node, tiny_graph


def test_costs_add_and_multiply_field_by_field() -> None:
    one = Cost(*range(1, 10))
    assert one + one == one * 2 == total([one, one]) == Cost(*range(2, 20, 2))
    assert total([]) == Cost()
    assert one.bytes == one.bytes_read + one.bytes_written
    assert len(fields(Cost)) == 9


def test_the_tiny_network_by_hand() -> None:
    table = graph_costs(tiny_graph(batch_size=2, channels=8))
    conv, relu, pool, flat, fc = table.nodes
    assert conv.macs == 2 * 8 * 14 * 14 * 27
    assert conv.bytes_read == 4 * (2 * 3 * 16 * 16 + 8 * 27)
    assert conv.bytes_written == 4 * 2 * 8 * 14 * 14
    assert relu.bytes == 2 * conv.bytes_written
    assert pool.bytes_written == 4 * 16
    assert flat == Cost()
    assert fc.macs == 2 * 8 * 4
    assert table.total.parameters == 8 * 27 + 32 == tiny_graph().parameter_count
    assert table.total.macs == conv.macs + fc.macs


def test_a_tensor_read_twice_is_read_once() -> None:
    graph = chain([Node("square", "Mul", ("x", "x"), ("y",))], {"x": (8,), "y": (8,)}, ["x"], ["y"])
    assert graph_costs(graph).nodes[0].bytes_read == 32


def test_a_gather_reads_rows_and_a_generator_nothing() -> None:
    gather = graph_costs(one_node("Gather", [(1000, 16), (4,)], [(4, 16)], weights=[0])).nodes[0]
    assert gather.bytes_read == 4 * 16 * 4 + 16
    assert gather.parameters == 16000
    assert graph_costs(one_node("Range", [], [(9,)])).nodes[0].bytes_read == 0


def test_an_embedding_bag_reads_a_row_for_each_index() -> None:
    bag = graph_costs(one_node("EmbeddingBag", [(1000, 16), (12,), (3,)], [(3, 16)], weights=[0])).nodes[0]
    assert bag.bytes_read == 12 * 16 * 4 + 12 * 4 + 3 * 4


def test_an_expanded_tensor_is_read_as_it_is_stored() -> None:
    nodes = [Node("e", "Expand", ("x",), ("y",)), Node("a", "Relu", ("y",), ("z",))]
    table = graph_costs(chain(nodes, {"x": (1, 8), "y": (64, 8), "z": (64, 8)}, ["x"], ["z"]))
    assert table.nodes[0] == Cost()
    assert table.nodes[1].bytes_read == 32
    assert table.nodes[1].bytes_written == 64 * 32


def test_a_reshape_of_a_transposed_tensor_copies() -> None:
    nodes = [Node("t", "Transpose", ("x",), ("y",), {"perm": (1, 0)}), Node("r", "Reshape", ("y",), ("z",))]
    table = graph_costs(chain(nodes, {"x": (4, 8), "y": (8, 4), "z": (32,)}, ["x"], ["z"]))
    assert table.nodes[0].launches == 0
    assert table.nodes[1] == Cost(bytes_read=128, bytes_written=128, activation_bytes=128, launches=1)


def test_shared_and_idle_weights_count_once() -> None:
    nodes = [Node("a", "MatMul", ("x", "w"), ("y",)), Node("b", "MatMul", ("y", "w"), ("z",))]
    graph = chain(nodes, {"x": (2, 4), "w": (4, 4), "w_idle": (5,), "y": (2, 4), "z": (2, 4)}, ["x"], ["z"])
    table = graph_costs(graph)
    assert table.total.parameters == 21 == graph.parameter_count
    assert [c.parameters for c in table.nodes] == [16, 0]
    assert table.nodes[1].bytes_read == table.nodes[0].bytes_read


def test_mixtures_read_only_the_experts_they_reach() -> None:
    def cost(tokens: int) -> Cost:
        graph = one_node("MoE", [(tokens, 8), (16, 8, 8)], [(tokens, 8)], weights=[1], experts=16, top_k=2)
        return graph_costs(graph).nodes[0]

    assert cost(1).bytes_read == 32 + 2 * 64 * 4
    assert cost(100).bytes_read == 3200 + 16 * 64 * 4


@pytest.mark.parametrize(
    ("op", "dtype", "group", "eligible"),
    [
        ("Conv", "fp32", 1, True),
        ("Conv", "fp32", 2, False),
        ("Conv", "fp16", 1, True),
        ("MatMul", "fp32", 1, False),
        ("MatMul", "bf16", 1, True),
        ("MatMul", "fp64", 1, False),
    ],
)
def test_tensor_cores(op: str, dtype: str, group: int, eligible: bool) -> None:
    inputs = [(1, 2, 4, 4), (2, 2 // group, 1, 1)] if op == "Conv" else [(4, 4), (4, 4)]
    graph = one_node(op, inputs, [(1, 2, 4, 4) if op == "Conv" else (4, 4)], dtype=dtype, group=group)
    cost = graph_costs(graph).nodes[0]
    assert cost.tensor_core_macs == (cost.macs if eligible else 0)


def test_recurrences_launch_once_a_step() -> None:
    assert (
        graph_costs(one_node("LSTM", [(7, 2, 4), (1, 16, 4), (1, 16, 4)], [(7, 1, 2, 4)], hidden_size=4))
        .nodes[0]
        .launches
        == 7
    )
    both = one_node(
        "LSTM", [(7, 2, 4), (2, 16, 4), (2, 16, 4)], [(7, 2, 2, 4)], hidden_size=4, direction="bidirectional"
    )
    assert graph_costs(both).nodes[0].launches == 14
    layered = one_node("GRU", [(2, 7, 4), (3, 2, 4)], [(2, 7, 4)], layers=3, batch_first=1)
    assert graph_costs(layered).nodes[0].launches == 21


def body(width: int) -> Graph:
    return one_node("MatMul", [(2, 4), (4, width)], [(2, width)], weights=[1])


def test_control_flow() -> None:
    loop = graph_costs(one_node("Loop", [(2, 4)], [(2, 4)], bodies=(body(4),), trips=5)).nodes[0]
    assert loop.macs == 5 * 32
    assert loop.parameters == 16
    branch = one_node("If", [(1,)], [(2, 8)], bodies=(body(4), body(8)))
    cost = graph_costs(branch).nodes[0]
    assert cost.macs == 64
    assert cost.parameters == 48 == branch.parameter_count


def test_sums_by_operator_and_module() -> None:
    nodes = [
        Node("a", "MatMul", ("x", "w1"), ("a",), module="block.0.fc"),
        Node("b", "Relu", ("a",), ("b",), module="block.0.act"),
        Node("c", "MatMul", ("b", "w2"), ("c",), module="block.1"),
    ]
    shapes = {"x": (2, 4), "w1": (4, 4), "w2": (4, 2), "a": (2, 4), "b": (2, 4), "c": (2, 2)}
    table = graph_costs(chain(nodes, shapes, ["x"], ["c"]))
    assert list(table.by_operator()) == ["MatMul", "Relu"]
    assert table.by_operator()["MatMul"] == (2, table.nodes[0] + table.nodes[2])
    modules = table.by_module()
    assert list(modules) == ["block", "block.0", "block.0.fc", "block.0.act", "block.1"]
    assert modules["block"][1].macs == table.total.macs
    assert modules["block.0"][0] == 2
    assert list(table.by_module(depth=1)) == ["block"]


def test_unknown_operators_are_reported_not_zero() -> None:
    graph = Graph.build(
        "g", [Node("n", "Mystery", ("x",), ("y",), domain="org.example")],
        {"x": Tensor("x", (4,), kind="input"), "y": Tensor("y", (4,))}, ["x"], ["y"],
    )  # fmt: skip
    table = graph_costs(graph)
    assert table.unknown_operators == {"org.example.Mystery": 1.0}
    assert table.coverage == 0.0
    assert table.total.flops == 4


def test_a_transposed_weight_belongs_to_the_product_not_to_the_view():
    tensors = [
        Tensor("x", (2, 8), kind="input", batch_axis=0),
        Tensor("w", (4, 8), kind="parameter"),
        Tensor("wt", (8, 4)),
        Tensor("y", (2, 4)),
    ]
    nodes = [Node("t", "Transpose", ("w",), ("wt",), {"perm": (1, 0)}), Node("m", "MatMul", ("x", "wt"), ("y",))]
    table = graph_costs(Graph.build("g", nodes, {t.name: t for t in tensors}, ["x"], ["y"], batch_size=2))
    assert [c.parameters for c in table.nodes] == [0, 32]
    assert table.total.parameters == 32


def test_what_is_written_in_place_or_viewed_is_no_new_activation() -> None:
    nodes = [
        Node("a", "Relu", ("x",), ("a",)),
        Node("b", "Relu", ("a",), ("b",), {"inplace": 1}),
        Node("v", "Reshape", ("b",), ("v",)),
    ]
    table = graph_costs(chain(nodes, {"x": (8,), "a": (8,), "b": (8,), "v": (2, 4)}, ["x"], ["v"]))
    assert [c.activation_bytes for c in table.nodes] == [32, 0, 0]
    assert [c.bytes_written for c in table.nodes] == [32, 32, 0]
    assert table.total.activation_bytes == 32


def test_folding_patches_reads_and_adds_every_patch() -> None:
    """Col2Im writes less than it reads: overlapping patches are summed."""
    cost = graph_costs(one_node("Col2Im", [(1, 3 * 9, 16)], [(1, 3, 6, 6)])).nodes[0]
    assert (cost.bytes_read, cost.bytes_written) == (4 * 27 * 16, 4 * 3 * 36)
    assert cost.flops == 27 * 16


def test_a_movement_reads_what_it_writes_and_a_concatenation_all_parts() -> None:
    padded = graph_costs(one_node("Pad", [(1, 1, 8, 8)], [(1, 1, 4, 4)])).nodes[0]
    assert padded.bytes_read == padded.bytes_written == 64
    joined = graph_costs(one_node("Concat", [(2, 4), (3, 4)], [(5, 4)])).nodes[0]
    assert joined.bytes_read == 4 * 20


def test_absent_outputs_and_the_target_of_a_copy_cost_nothing() -> None:
    nodes = [Node("t", "TopK", ("x",), ("", "i"))]
    costs = graph_costs(chain(nodes, {"x": (8,), "i": (8,)}, ["x"], ["i"])).nodes[0]
    assert (costs.bytes_read, costs.bytes_written) == (32, 32)
    copied = graph_costs(one_node("CopyTo", [(8,), (4,)], [(8,)])).nodes[0]
    assert copied.bytes_read == 16, "what is written over is not read"


def test_a_gather_reads_no_more_than_its_table() -> None:
    gather = graph_costs(one_node("Gather", [(2, 16), (100,)], [(100, 16)], weights=[0])).nodes[0]
    assert gather.bytes_read == 2 * 16 * 4 + 400
    assert gather.bytes_written == 100 * 16 * 4


def test_grouped_products_read_the_experts_that_are_reached() -> None:
    def read(rows: int) -> int:
        graph = one_node("GroupedMatMul", [(rows, 8), (4, 8, 16), (5,)], [(rows, 16)], weights=[1])
        return graph_costs(graph).nodes[0].bytes_read

    assert read(1) == 32 + 4 * 8 * 16 * 4 // 4 + 20  # one row reaches one of four
    assert read(2) == 64 + int(4 * 8 * 16 * 4 * (1 - 0.75**2)) + 20
    assert read(400) == 400 * 32 + int(4 * 8 * 16 * 4 * (1 - 0.75**400)) + 20


def test_zero_experts_and_zero_rows_are_allowed() -> None:
    assert _reached_share(0, 5) == 1.0
    empty = one_node("GroupedMatMul", [(0, 8), (4, 8, 16)], [(0, 16)], weights=[1])
    assert graph_costs(empty).nodes[0].bytes_read == 0
    narrow = one_node("GroupedMatMul", [(5, 0), (4, 8, 16)], [(5, 16)], weights=[1])
    assert graph_costs(narrow).nodes[0].bytes_read == 0


def test_the_mean_share_of_a_mixture_is_that_of_its_tokens() -> None:
    def read(tokens: int, chosen: int) -> int:
        graph = one_node("MoE", [(tokens, 8), (4, 8, 8)], [(tokens, 8)], weights=[1], experts=4, top_k=chosen)
        return graph_costs(graph).nodes[0].bytes_read - tokens * 32

    all_experts_bytes = 4 * 8 * 8 * 4
    assert [read(1, 1), read(3, 1), read(1, 3), read(4, 2)] == [
        all_experts_bytes // 4,
        all_experts_bytes * 3 // 4,
        all_experts_bytes * 3 // 4,
        all_experts_bytes,
    ]


@pytest.mark.parametrize(
    ("op", "weight", "group", "dtype", "eligible"),
    [
        ("Conv", (4, 1, 1, 1), 1, "fp32", True),  # one channel, but no groups: a matrix all the same
        ("Conv", (4, 1, 1, 1), 4, "fp16", False),  # depthwise
        ("Conv", (4, 2, 1, 1), 2, "fp32", True),  # groups of two
        ("ConvTranspose", (4, 4, 1, 1), 1, "fp32", True),
        ("FusedConv", (4, 4, 1, 1), 1, "fp32", True),
        ("ConvInteger", (4, 4, 1, 1), 1, "fp32", False),
        ("Conv", (4, 4, 1, 1), 1, "fp64", False),
    ],
)
def test_which_convolutions_run_on_tensor_cores(
    op: str, weight: tuple[int, ...], group: int, dtype: str, eligible: bool
) -> None:
    graph = one_node(op, [(1, weight[1] * group, 4, 4), weight], [(1, 4, 4, 4)], dtype=dtype, group=group)
    cost = graph_costs(graph).nodes[0]
    assert cost.macs > 0
    assert cost.tensor_core_macs == (cost.macs if eligible else 0)


def test_both_operands_of_a_product_must_be_short_for_tensor_cores() -> None:
    def eligible(left: str, right: str) -> bool:
        tensors = [Tensor("x", (4, 4), left, "input"), Tensor("k", (4, 4), right, "input"), Tensor("y", (4, 4), left)]
        node = Node("m", "MatMul", ("x", "k"), ("y",))
        graph = Graph.build("g", [node], {t.name: t for t in tensors}, ["x", "k"], ["y"])
        return graph_costs(graph).nodes[0].tensor_core_macs > 0

    assert eligible("fp16", "int8")
    assert not eligible("fp16", "fp32")
    assert not eligible("fp32", "fp16")


def test_launches_of_recurrences_without_steps_and_with_directions() -> None:
    empty = one_node("GRU", [(0, 2, 4), (1, 2, 4)], [(0, 2, 4)])
    assert graph_costs(empty).nodes[0].launches == 1
    both = one_node("GRU", [(7, 2, 4), (2, 2, 4)], [(7, 2, 8)], directions=2)
    assert graph_costs(both).nodes[0].launches == 14
    forward = one_node("LSTM", [(7, 2, 4), (1, 16, 4), (1, 16, 4)], [(7, 1, 2, 4)], hidden_size=4, direction="forward")
    assert graph_costs(forward).nodes[0].launches == 7
    unbatched = one_node("GRU", [(7, 4), (1, 4)], [(7, 4)])
    assert graph_costs(unbatched).nodes[0].launches == 7
    alone = one_node("GRU", [(4,), (1, 4)], [(4,)])
    assert graph_costs(alone).nodes[0].launches == 1
    turned = one_node("GRU", [(2, 7, 4), (1, 2, 4)], [(2, 7, 4)], layout=1)
    assert graph_costs(turned).nodes[0].launches == 7


def test_of_branches_with_equal_work_the_one_that_moves_more_counts() -> None:
    few, many = one_node("Concat", [(4,), (4,)], [(8,)]), one_node("Concat", [(40,), (40,)], [(80,)])
    for bodies in ((few, many), (many, few)):
        cost = graph_costs(one_node("If", [(1,)], [(8,)], bodies=bodies)).nodes[0]
        assert (cost.flops, cost.bytes_written) == (0, 320)
    assert graph_costs(one_node("If", [(1,)], [(8,)])).nodes[0] == Cost()
    once = graph_costs(one_node("Loop", [(2, 4)], [(2, 4)], bodies=(body(4),))).nodes[0]
    assert once.macs == 32


def test_parameters_behind_what_costs_nothing_are_counted() -> None:
    looped = chain([Node("s", "Shape", ("w",), ("n",)), Node("r", "Relu", ("x",), ("y",))],
                   {"w": (5, 5), "n": (2,), "x": (4,), "y": (4,)}, ["x"], ["y"])  # fmt: skip
    table = graph_costs(looped)
    assert (table.nodes[0].parameters, table.nodes[0].parameter_bytes) == (25, 100)
    assert table.nodes[0].launches == table.nodes[0].bytes == 0
    copied = chain([Node("t", "Transpose", ("w",), ("t",), {"perm": (1, 0)}), Node("r", "Reshape", ("t",), ("y",))],
                   {"w": (2, 3), "t": (3, 2), "y": (6,)}, [], ["y"])  # fmt: skip
    assert graph_costs(copied).nodes[1] == Cost(0, 0, 6, 24, 24, 24, 24, 0, 1)
    viewed = chain([Node("t", "Transpose", ("w",), ("y",), {"perm": (1, 0)})], {"w": (2, 3), "y": (3, 2)}, [], ["y"])
    assert graph_costs(viewed).nodes[0] == Cost(parameters=6, parameter_bytes=24), "nobody reads the view"
    control = graph_costs(one_node("Loop", [(2, 4)], [(2, 4)], weights=[0], bodies=(body(4),), trips=2)).nodes[0]
    assert (control.parameters, control.parameter_bytes) == (16 + 8, 64 + 32)


def test_operators_come_by_work_then_by_traffic_then_by_name() -> None:
    nodes = [
        Node("a", "Tanh", ("x",), ("a",)),
        Node("b", "Abs", ("a",), ("b",)),
        Node("c", "Concat", ("b", "b"), ("c",), {"axis": 0}),
        Node("d", "MatMul", ("s", "s"), ("d",)),
    ]
    shapes = {"x": (8,), "a": (8,), "b": (8,), "c": (16,), "s": (2, 2), "d": (2, 2)}
    table = graph_costs(chain(nodes, shapes, ["x", "s"], ["c", "d"]))
    assert list(table.by_operator()) == ["MatMul", "Concat", "Abs", "Tanh"]


def test_modules_are_summed_to_a_depth_in_model_order() -> None:
    nodes = [
        Node("a", "Relu", ("x",), ("a",), module="z.one.deep"),
        Node("b", "Relu", ("a",), ("b",)),
        Node("c", "Relu", ("b",), ("c",), module="a"),
        Node("d", "Relu", ("c",), ("d",), module="z.two"),
    ]
    table = graph_costs(chain(nodes, dict.fromkeys("xabcd", (4,)), ["x"], ["d"]))
    assert list(table.by_module()) == ["z", "z.one", "z.one.deep", "a", "z.two"]
    assert {name: count for name, (count, _) in table.by_module(2).items()} == {"z": 2, "z.one": 1, "a": 1, "z.two": 1}
    assert list(table.by_module(1)) == ["z", "a"]


def test_each_unknown_operator_has_its_share_of_the_bytes() -> None:
    nodes = [
        Node("a", "Mystery", ("x",), ("a",)),
        Node("b", "Relu", ("a",), ("b",)),
        Node("c", "Mystery", ("b",), ("c",)),
        Node("d", "Puzzle", ("c",), ("d",)),
    ]
    table = graph_costs(chain(nodes, dict.fromkeys("xabcd", (4,)), ["x"], ["d"]))
    assert table.unknown_operators == {"Mystery": 0.5, "Puzzle": 0.25}
    assert table.coverage == 0.25
    nothing = graph_costs(one_node("Mystery", [(0,)], [(0,)]))
    assert nothing.unknown_operators == {"Mystery": 0.0}
    assert nothing.coverage == 1.0


def test_numbers_smaller_than_a_byte_share_one() -> None:
    tensors = [Tensor("x", (16,), "int4", "input"), Tensor("y", (16,), "fp16")]
    graph = Graph.build("g", [Node("c", "Cast", ("x",), ("y",))], {t.name: t for t in tensors}, ["x"], ["y"])
    assert (graph_costs(graph).nodes[0].bytes_read, graph_costs(graph).nodes[0].bytes_written) == (8, 32)


def test_a_convolution_of_one_channel_that_says_nothing_of_groups_has_a_matrix() -> None:
    cost = graph_costs(one_node("Conv", [(1, 1, 4, 4), (4, 1, 1, 1)], [(1, 4, 4, 4)])).nodes[0]
    assert cost.tensor_core_macs == cost.macs > 0


def test_products_of_fp32_run_on_tensor_cores_only_in_tf32() -> None:
    conv, *_, fc = graph_costs(tiny_graph()).nodes
    assert (conv.tensor_core_macs, fc.tensor_core_macs) == (conv.macs, 0)
    conv, *_, fc = graph_costs(in_tf32(tiny_graph())).nodes
    assert (conv.tensor_core_macs, fc.tensor_core_macs) == (conv.macs, fc.macs)


def test_an_attribute_below_zero_is_refused() -> None:
    graph = one_node("ContribAttention", [(1, 64, 2), (2, 6)], [(1, 64, 2)], num_heads=-2)
    with pytest.raises(GraphError, match=r"would be negative.*num_heads"):
        graph_costs(graph)
