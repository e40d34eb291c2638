import pytest

from foretell.frontends.torch.aten import AtenProgram, assemble
from foretell.frontends.torch.aten_operators import AtenCall, Ref
from foretell.graph import Graph, Tensor, graph_costs


def program(calls: list[AtenCall], *tensors: Tensor, outputs: tuple[str, ...] = ("y",)) -> Graph:
    inputs = tuple(t.name for t in tensors if t.kind == "input")
    return assemble(AtenProgram("test", tuple(calls), {t.name: t for t in tensors}, inputs, outputs, batch_size=2))


def one(
    target: str, arguments: dict[str, object], source: tuple[int, ...], result: tuple[int, ...], *others: Tensor
) -> Graph:
    call = AtenCall("n", target, {"self": Ref("x"), **arguments}, ("y",))
    return program([call], Tensor("x", source, kind="input", batch_axis=0), Tensor("y", result), *others)


@pytest.mark.parametrize(
    ("target", "arguments", "perm"),
    [
        ("aten.permute.default", {"dims": [0, 2, -1, 1]}, (0, 2, 3, 1)),
        ("aten.transpose.int", {"dim0": 1, "dim1": -1}, (0, 3, 2, 1)),
        ("aten.movedim.int", {"source": 1, "destination": 3}, (0, 2, 3, 1)),
        ("aten.mT.default", {}, (0, 1, 3, 2)),
    ],
)
def test_every_spelling_of_a_permutation_becomes_a_transpose(target, arguments, perm):
    source = (2, 3, 5, 7)
    node = one(target, arguments, source, tuple(source[p] for p in perm)).nodes[0]
    assert node.op == "Transpose"
    assert node.attributes["perm"] == perm


def test_in_place_operators_share_the_storage_of_their_input():
    plain = one("aten.relu.default", {}, (2, 8), (2, 8))
    in_place = one("aten.relu_.default", {}, (2, 8), (2, 8))
    assert graph_costs(plain).total.activation_bytes == 2 * 8 * 4
    assert graph_costs(in_place).total.activation_bytes == 0
    assert graph_costs(in_place).total.bytes == graph_costs(plain).total.bytes


def test_a_cast_to_the_same_dtype_does_nothing():
    graph = one("aten.to.dtype", {"dtype": "float32"}, (2, 8), (2, 8))
    assert graph.nodes[0].op == "Identity"
    assert graph_costs(graph).total.launches == 0


def test_a_weight_norm_is_one_kernel_that_reads_and_writes_the_weight():
    gain = Tensor("g", (8, 1), kind="parameter")
    weight = Tensor("x", (8, 6), kind="parameter")
    call = AtenCall("n", "aten._weight_norm.default", {"v": Ref("x"), "g": Ref("g")}, ("y",))
    graph = program([call], weight, gain, Tensor("y", (8, 6)))
    costs = graph_costs(graph)
    cost = costs.total
    assert (costs.unknown_operators, cost.launches) == ({}, 1)
    assert (cost.flops, cost.bytes_read, cost.bytes_written) == (5 * 48, 4 * (48 + 8), 4 * 48)


def test_dropout_runs_only_in_training_and_with_a_rate():
    ops = [
        one("aten.dropout.default", a, (2, 8), (2, 8)).nodes[0].op
        for a in ({"p": 0.1, "train": True}, {"p": 0.0, "train": True}, {"p": 0.1})
    ]
    assert ops == ["DropoutMask", "Dropout", "Dropout"]


def test_max_of_two_tensors_is_elementwise_and_of_one_a_reduction():
    pair = one("aten.max.other", {"other": Ref("z")}, (2, 8), (2, 8), Tensor("z", (2, 8), kind="input", batch_axis=0))
    single = one("aten.max.dim", {"dim": 1}, (2, 8), (2,))
    assert (pair.nodes[0].op, single.nodes[0].op) == ("Max", "ReduceMax")


def test_addmm_puts_its_bias_last():
    tensors = [
        Tensor("b", (4,), kind="parameter"),
        Tensor("x", (2, 8), kind="input", batch_axis=0),
        Tensor("w", (8, 4), kind="parameter"),
        Tensor("y", (2, 4)),
    ]
    graph = program(
        [AtenCall("n", "aten.addmm.default", {"self": Ref("b"), "mat1": Ref("x"), "mat2": Ref("w")}, ("y",))], *tensors
    )
    assert graph.nodes[0].inputs == ("x", "w", "b")
    assert graph_costs(graph).total.macs == 2 * 8 * 4


def test_an_adaptive_pool_to_one_element_is_global():
    graph = one("aten.adaptive_avg_pool2d.default", {"output_size": [1, 1]}, (2, 3, 7, 7), (2, 3, 1, 1))
    assert graph.nodes[0].op == "GlobalAveragePool"


def test_an_unknown_operator_keeps_its_name_and_is_reported_with_its_share():
    table = graph_costs(one("mylib.magic.default", {}, (2, 8), (2, 8)))
    assert table.unknown_operators == {"mylib.magic": 1.0}
    assert table.coverage == 0.0
    assert table.total.bytes > 0


def test_checks_and_sizes_leave_no_node():
    calls = [
        AtenCall("s", "aten.sym_size.int", {"self": Ref("x")}, ()),
        AtenCall("n", "aten.relu.default", {"self": Ref("x")}, ("y",)),
    ]
    graph = program(calls, Tensor("x", (2, 8), kind="input", batch_axis=0), Tensor("y", (2, 8)))
    assert [n.op for n in graph.nodes] == ["Relu"]


def test_unused_parameters_stay_in_the_graph():
    calls = [AtenCall("n", "aten.relu.default", {"self": Ref("x")}, ("y",))]
    graph = program(
        calls,
        Tensor("x", (2, 8), kind="input", batch_axis=0),
        Tensor("y", (2, 8)),
        Tensor("idle", (5,), kind="parameter"),
    )
    assert graph.parameter_count == 5
    assert graph_costs(graph).total.parameters == 5


@pytest.mark.parametrize(
    ("target", "attributes"),
    [
        ("aten.scatter.src", {}),
        ("aten.scatter_add.default", {"reduction": "add"}),
        ("aten.scatter_reduce.two", {"reduction": "add"}),
        ("aten.index_add.default", {"rows": 1}),
        ("aten.index_put.default", {"indexed": 1}),
    ],
)
def test_a_scatter_says_how_it_combines_values(target, attributes):
    others = (Tensor("i", (2, 8), dtype="int64", kind="input"), Tensor("z", (2, 8), kind="input"))
    node = one(target, {"dim": 0, "index": Ref("i"), "src": Ref("z")}, (2, 8), (2, 8), *others).nodes[0]
    assert node.op == "ScatterElements"
    assert {name: node.attributes[name] for name in ("reduction", "rows", "indexed") if name in node.attributes} == (
        attributes
    )
