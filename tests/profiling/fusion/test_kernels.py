import pytest

from foretell.graph import Node
from foretell.profiling.fusion.kernels import NO_KERNEL, Compiled, edges_of, fusion_id, label_graph
from foretell.profiling.workload import Workload
from foretell.testing import chain, tiny_graph


def test_every_node_has_its_kernel_and_every_edge_its_answer():
    compiled = Compiled(("conv+relu", "pool", "gemm"), {"conv": (0,), "relu": (0,), "pool": (1,), "fc": (2,)})
    labels = label_graph(tiny_graph(), compiled)
    assert labels.groups == (0, 0, 1, NO_KERNEL, 2)
    assert labels.kernels == ("conv+relu", "conv+relu", "pool", "", "gemm")
    edges = dict(zip(zip(labels.sources, labels.targets), labels.fused))
    assert edges == {(0, 1): True, (1, 2): False, (2, 3): False, (3, 4): False}
    assert labels.kernel_count == 3


def test_a_node_computed_anew_in_two_kernels_is_fused_with_both_readers():
    nodes = [Node("a", "Relu", ("x",), ("a",)), Node("b", "Exp", ("a",), ("b",)), Node("c", "Softmax", ("a",), ("c",))]
    graph = chain(nodes, dict.fromkeys("xabc", (4,)), ["x"], ["b", "c"])
    labels = label_graph(graph, Compiled(("first", "second"), {"a": (1, 0), "b": (0,), "c": (1,)}))
    assert labels.fused == (True, True)
    assert labels.groups == (1, 0, 1)


def test_what_is_dropped_inside_a_kernel_belongs_to_it_and_elsewhere_to_none():
    names = ["add", "dropout", "view", "norm", "last"]
    nodes = [Node(n, "Relu", (before,), (n,)) for before, n in zip(["x", *names], names)]
    graph = chain(nodes, dict.fromkeys(["x", *names], (4,)), ["x"], ["last"])
    labels = label_graph(graph, Compiled(("k", "l"), {"add": (0,), "norm": (0,), "last": (1,)}))
    assert labels.groups == (0, 0, 0, 0, 1)
    assert labels.fused == (True, True, True, False)
    apart = label_graph(graph, Compiled(("k", "l"), {"add": (0,), "norm": (1,)}))
    assert apart.groups == (0, NO_KERNEL, NO_KERNEL, 1, NO_KERNEL)
    assert not any(apart.fused)


def test_an_edge_is_named_for_every_reader_of_a_tensor():
    assert sorted(edges_of(tiny_graph())) == [(0, 1), (1, 2), (2, 3), (3, 4)]


@pytest.mark.parametrize(
    "other",
    [
        ("onnxruntime", Workload("timm:a", 8, (3, 8, 8), "fp32")),
        ("inductor", Workload("timm:b", 8, (3, 8, 8), "fp32")),
        ("inductor", Workload("timm:a", 1, (3, 8, 8), "fp32")),
        ("inductor", Workload("timm:a", 8, (3, 9, 8), "fp32")),
        ("inductor", Workload("timm:a", 8, (3, 8, 8), "bf16")),
    ],
)
def test_identities_differ_where_compilations_may(other):
    one = fusion_id("inductor", Workload("timm:a", 8, (3, 8, 8), "fp32"))
    assert one == fusion_id("inductor", Workload("timm:a", 8, (3, 8, 8), "fp32", family="x"))
    assert one != fusion_id(*other)
