"""Nodes of one origin run as one: the work is theirs, the traffic only what crosses the edge."""

from foretell.graph import Cost, Node, graph_costs, run_groups
from foretell.graph.ir.groups import group_operator
from foretell.testing import chain, tiny_graph

SHAPES = {"q": (2, 8, 4), "k": (2, 4, 8), "v": (2, 8, 4), "s": (2, 8, 8), "p": (2, 8, 8), "o": (2, 8, 4)}


def attention(origin: str = "sdpa", origin_op: str = "") -> list[Node]:
    return [
        Node("qk", "MatMul", ("q", "k"), ("s",), origin=origin, origin_op=origin_op),
        Node("softmax", "Softmax", ("s",), ("p",), origin=origin, origin_op=origin_op),
        Node("pv", "MatMul", ("p", "v"), ("o",), origin=origin, origin_op=origin_op),
    ]


def test_attention_of_three_nodes() -> None:
    table = graph_costs(chain(attention(), SHAPES, ["q", "k", "v"], ["o"]))
    (group,) = run_groups(table)
    assert (group.name, group.op, group.nodes) == ("sdpa", "Attention", (0, 1, 2))
    assert group.cost.macs == table.total.macs
    assert group.cost.flops == table.total.flops
    assert group.cost.bytes_read == 3 * 64 * 4
    assert group.cost.bytes_written == 64 * 4
    assert group.cost.launches == 1


def test_an_inner_tensor_that_someone_else_reads_leaves_the_group() -> None:
    nodes = [*attention(), Node("log", "Log", ("p",), ("l",))]
    table = graph_costs(chain(nodes, {**SHAPES, "l": (2, 8, 8)}, ["q", "k", "v"], ["o", "l"]))
    group, other = run_groups(table)
    assert group.cost.bytes_written == (64 + 128) * 4
    assert other.cost == table.nodes[3]


def test_without_origins_every_node_is_a_group() -> None:
    table = graph_costs(tiny_graph())
    groups = run_groups(table)
    assert [g.nodes for g in groups] == [(i,) for i in range(5)]
    assert [g.cost for g in groups] == list(table.nodes)


def test_a_gather_in_a_group_reads_rows() -> None:
    nodes = [Node("g", "Gather", ("w", "i"), ("e",), origin="o"), Node("a", "Relu", ("e",), ("y",), origin="o")]
    table = graph_costs(chain(nodes, {"w": (1000, 8), "i": (3,), "e": (3, 8), "y": (3, 8)}, ["i"], ["y"]))
    indices = 3 * 4
    assert run_groups(table)[0].cost.bytes_read <= table.nodes[0].bytes_read + indices < 1000


def test_views_alone_move_nothing() -> None:
    nodes = [
        Node("r", "Reshape", ("x",), ("y",), origin="o"),
        Node("t", "Transpose", ("y",), ("z",), {"perm": (1, 0)}, origin="o"),
    ]
    (group,) = run_groups(graph_costs(chain(nodes, {"x": (8,), "y": (2, 4), "z": (4, 2)}, ["x"], ["z"])))
    assert group.cost == Cost()


def test_views_that_leave_a_group_are_written_once() -> None:
    nodes = [
        Node("m", "MatMul", ("x", "w"), ("h",), origin="o"),
        Node("a", "Reshape", ("h",), ("a",), origin="o"),
        Node("b", "Reshape", ("h",), ("b",), origin="o"),
    ]
    shapes = {"x": (2, 4), "w": (4, 4), "h": (2, 4), "a": (8,), "b": (4, 2)}
    table = graph_costs(chain(nodes, shapes, ["x"], ["a", "b"]))
    assert run_groups(table)[0].cost.bytes_written == table.total.bytes_written == 32


def test_names_of_groups() -> None:
    def named(*ops: str, origin_op: str = "") -> str:
        return group_operator([Node("n", op, (), (), origin_op=origin_op) for op in ops])

    assert named("Relu") == "Relu"
    assert named("Div", "Erf", "Add", origin_op="Gelu") == "Gelu"
    assert named("Div", "Conv", origin_op="aten_mystery") == "Conv"
    assert named("MatMul", "Add") == "MatMul"
    assert named("Reshape", "Transpose") == "Transpose"
