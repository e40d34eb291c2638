"""Frontends: whether inputs of fixed shapes have a batch.

Example inputs, ``.pt2`` files and ONNX files with fixed shapes do not say which axis is the batch. The first axis is
taken for it where all inputs agree, where nothing in the graph reads across it, and where it reaches an output.
Otherwise the inputs stay as they are: 2,708 nodes of a graph network are not 2,708 items, nor 30 steps a batch.
"""

from collections.abc import Iterable

from foretell.frontends.batch_mixing import keeps_batch, mixes_batch
from foretell.graph import Graph
from foretell.graph.ir.batch import without_batch


def shared_batch(shapes: Iterable[tuple[int, ...]]) -> int | None:
    """The batch size of inputs: the first axis of the first one, where the others agree; None where they do not.

    An axis of 1 agrees with every other, because it broadcasts; and a first input with one item is a batch of 1,
    whatever stands beside it. 2,708 nodes and 2 ends of an edge do not agree.

    >>> shared_batch([(8, 3, 224, 224), (1,), (8, 77)]), shared_batch([(2708, 1433), (2, 10556)])
    (8, None)
    >>> shared_batch([(1, 6, 4), (6, 4)])
    1
    """
    sizes = [shape[0] for shape in shapes if shape]
    if not sizes or sizes[0] == 1:
        return 1
    return sizes[0] if set(sizes) <= {1, sizes[0]} else None


def refuse_false_batch(graph: Graph, *, has_batch: bool) -> Graph:
    """The graph, without its batch where the first axis cannot be one; a warning says that it is one item.

    ``has_batch`` says whether the inputs agree in their first axis (`shared_batch`).
    """
    if not has_batch:
        return without_batch(
            graph, f"The inputs ({_shapes(graph)}) have no common first axis: they are taken as they are, as one item."
        )
    operator = mixes_batch(graph)
    if operator is None and (graph.batch_size == 1 or keeps_batch(graph)):
        return graph
    why = "no output has it" if operator is None else f"{operator} reads across it"
    reason = f"the first axis of the inputs ({_shapes(graph)}) is no batch, because {why}"
    return without_batch(graph, f"Taken as one item: {reason}.")


def _shapes(graph: Graph) -> str:
    shapes = {name: graph.tensors[name].shape for name in graph.inputs}
    return ", ".join(f"{name} {'x'.join(map(str, shape)) or 'scalar'}" for name, shape in list(shapes.items())[:6])
