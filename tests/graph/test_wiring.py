"""The edges of graphs as numbers."""

from foretell.graph import Graph, Node, Tensor
from foretell.graph.wiring import numbers_of, wiring
from foretell.testing import tiny_graph


def branching() -> Graph:
    """``a`` is read twice by one node and once by another; one optional operand is absent, one result is dropped."""
    kinds = {"x": "input", "w": "parameter", "unread": "parameter"}
    tensors = {name: Tensor(name, (2, 3), kind=kinds.get(name, "activation")) for name in "xwabcd"}  # type: ignore[arg-type]
    tensors["unread"] = Tensor("unread", (3,), kind="parameter")
    nodes = (
        Node("first", "MatMul", ("x", "w"), ("a",)),
        Node("second", "Mul", ("a", "a"), ("b",)),
        Node("third", "Clip", ("a", "", "b"), ("c", "")),
        Node("fourth", "Reshape", ("c",), ("d",)),
    )
    return Graph.build("g", nodes, tensors, ["x"], ["d"])


def test_edges_are_numbers_of_tensors() -> None:
    edges = wiring(branching())
    assert edges.names == ["x", "w", "a", "b", "c", "d", "unread"]
    assert edges.inputs == [(0, 1), (2, 2), (2, -1, 3), (4,)]
    assert edges.outputs == [(2,), (3,), (4, -1), (5,)]
    assert edges.kinds == ["contraction", "elementwise", "elementwise", "view"]
    assert [array.tolist() for array in edges.reads] == [[0, 1, 2, 2, 2, 3, 4], [0, 0, 1, 1, 2, 2, 3]]
    assert [array.tolist() for array in edges.makes] == [[2, 3, 4, 5], [0, 1, 2, 3]]
    assert edges.producers.tolist() == [-1, -1, 0, 1, 2, 3, -1]
    assert edges.last_readers.tolist() == [0, 0, 2, 2, 3, -1, -1]
    assert edges.first_readers == {0: 0, 1: 0, 2: 1, 3: 2, 4: 3}


def test_edges_agree_with_names() -> None:
    graph = tiny_graph()
    edges = wiring(graph)
    for name, positions in graph.consumers.items():
        number = edges.numbers[name]
        assert (edges.first_readers[number], edges.last_readers[number]) == (positions[0], positions[-1])
    assert {name: edges.producers[edges.numbers[name]] for name in graph.producers} == graph.producers


def test_tensors_are_found_by_kind_and_shared_by_other_sizes() -> None:
    graph = branching()
    assert numbers_of(graph, "parameter") == [1, 6]
    assert numbers_of(graph, "input", "parameter") == [0, 1, 6]
    assert wiring(graph.with_dtype("fp16")) is wiring(graph)
