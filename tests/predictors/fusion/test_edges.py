import numpy as np
import pytest

from foretell.features.units import KINDS
from foretell.graph import Graph, Node, Tensor
from foretell.predictors.fusion.edges import CATEGORIES, EDGE_COLUMNS, RUNTIMES, edges_of, extract_edges
from foretell.testing import chain, tiny_graph
from small.tiny_workloads import forked


def column(edges, name):
    return edges.features[:, EDGE_COLUMNS.index(name)]


def residual(length: int) -> Graph:
    """A stream to which the results of products are added, each of which reads the stream."""
    nodes, shapes = [], {"x0": (8, 16)}
    tensors = [Tensor("w", (16, 16), kind="parameter")]
    for number in range(length):
        nodes.append(Node(f"gemm{number}", "Gemm", (f"x{number}", "w"), (f"g{number}",)))
        nodes.append(Node(f"add{number}", "Add", (f"x{number}", f"g{number}"), (f"x{number + 1}",)))
        shapes |= {f"g{number}": (8, 16), f"x{number + 1}": (8, 16)}
    tensors += [Tensor(name, shape, kind="input" if name == "x0" else "activation") for name, shape in shapes.items()]
    return Graph.build("residual", nodes, {tensor.name: tensor for tensor in tensors}, ["x0"], [f"x{length}"])


def test_every_pair_of_a_node_and_its_reader_is_one_row():
    graph = forked().graph
    edges = extract_edges(graph, "inductor")
    assert (
        edges_of(graph) == list(zip(edges.sources.tolist(), edges.targets.tolist())) == [(0, 1), (0, 2), (1, 3), (2, 3)]
    )
    assert edges.features.shape == (4, len(EDGE_COLUMNS))
    assert np.isfinite(edges.features).all()
    assert column(edges, "only_reader").tolist() == [0, 0, 1, 1]
    assert column(edges, "only_maker").tolist() == [1, 1, 0, 0]


def test_a_graph_without_edges_has_no_rows():
    graph = chain([Node("relu", "Relu", ("x",), ("y",))], {"x": (2, 3), "y": (2, 3)}, ["x"], ["y"])
    assert extract_edges(graph, "onnxruntime").features.shape == (0, len(EDGE_COLUMNS))


def test_a_row_knows_its_runtime_its_ends_and_what_is_around_them():
    edges = extract_edges(tiny_graph(), "onnxruntime")
    assert set(column(edges, "runtime")) == {RUNTIMES.index("onnxruntime")}
    kinds = [KINDS[int(code)] for code in column(edges, "source_kind")]
    assert kinds[0] == "contraction"
    assert column(edges, "behind_1")[0] == column(edges, "target_operator")[1]
    assert column(edges, "before_1")[1] == column(edges, "source_operator")[0]
    assert column(edges, "before_1")[0] == -1


def test_categories_are_columns_of_codes_and_not_of_sizes():
    named = {EDGE_COLUMNS[position] for position in CATEGORIES}
    assert {"runtime", "source_operator", "target_kind", "true_behind", "source_next_work"} <= named
    assert not {"log_ratio", "source_log_next_work", "source_steps_to_work", "distance"} & named


def test_a_product_on_another_way_stands_between_the_ends():
    edges = extract_edges(residual(2), "inductor")
    pairs = list(zip(edges.sources.tolist(), edges.targets.tolist()))
    between = dict(zip(pairs, column(edges, "products_between").tolist()))
    assert between[0, 1] == 0  # Gemm → Add
    assert between[1, 3] == 1  # Add → Add, with a Gemm on the other way


def test_a_stream_is_written_out_where_too_many_buffers_would_be_read_again():
    edges = extract_edges(residual(9), "inductor")
    adds = [row for row, source in enumerate(edges.sources.tolist()) if source % 2 == 1]
    # every add is read by a product here, which wants its operand in memory
    assert set(column(edges, "source_written_out")[adds]) == {1.0}
    assert column(edges, "source_reads")[adds].max() == 2


@pytest.mark.parametrize(("channels", "expected"), [(64, 16.0), (24, 8.0), (30, 2.0), (7, 1.0)])
def test_channels_are_described_by_the_block_they_fill(channels, expected):
    edges = extract_edges(tiny_graph(channels=channels), "onnxruntime")
    assert column(edges, "source_aligned")[0] == expected


def test_a_reshape_that_copies_differs_from_one_that_does_not():
    def reshaped(*nodes):
        shapes = {"x": (4, 6), "r": (4, 6), "t": (6, 4), "y": (24,), "z": (24,)}
        return extract_edges(chain([Node("relu", "Relu", ("x",), ("r",)), *nodes], shapes, ["x"], ["z"]), "inductor")

    last = Node("last", "Relu", ("y",), ("z",))
    plain = reshaped(Node("reshape", "Reshape", ("r",), ("y",)), last)
    turned = Node("turn", "Transpose", ("r",), ("t",), {"perm": (1, 0)})
    copied = reshaped(turned, Node("reshape", "Reshape", ("t",), ("y",)), last)
    assert column(plain, "target_copies")[0] == 0
    assert column(copied, "target_strided")[0] == 1
    assert column(copied, "target_copies")[1] == 1


def test_tensors_computed_from_weights_alone_are_marked():
    tensors = [
        Tensor("x", (2, 4), kind="input"), Tensor("w", (4, 4), kind="parameter"),
        *(Tensor(name, (4, 4)) for name in ("n", "m")), Tensor("y", (2, 4)),
    ]  # fmt: skip
    nodes = [
        Node("abs", "Abs", ("w",), ("n",)),
        Node("neg", "Neg", ("n",), ("m",)),
        Node("gemm", "Gemm", ("x", "m"), ("y",)),
    ]
    edges = extract_edges(Graph.build("g", nodes, {t.name: t for t in tensors}, ["x"], ["y"]), "onnxruntime")
    assert column(edges, "source_from_input").tolist() == [0, 0]
    assert column(edges, "target_from_input").tolist() == [0, 1]


def test_a_batch_changes_nothing():
    small, large = (extract_edges(tiny_graph(batch_size=size), "inductor").features for size in (2, 48))
    assert (small == large).all()
