"""Frontends: reads a graph file that foretell wrote, or that somebody says it wrote: a large one in a cage."""

from collections.abc import Iterator
from pathlib import Path

from foretell.errors import GraphError, ModelError
from foretell.frontends.budget import LIMITS, Budget, check_size, parse_json
from foretell.frontends.request import ModelRequest
from foretell.graph import Graph
from foretell.graph.ir import serde

MAX_FAST_BYTES = 2**24  # of JSON: less than this is read at once, since it can take neither long nor much memory


def load_graph_file(request: ModelRequest) -> Graph:
    """Read a graph file: a small one here, any other one in a cage."""
    path = Path(request.source)
    check_size(path, serde.MAX_BYTES, "a graph file")
    if request.has_limits or serde.is_longer(_content(path), MAX_FAST_BYTES):
        from foretell.frontends.caged import read_caged  # here, because few files need it

        return read_caged("foretell.frontends.graph_file:read_graph", request)
    return read_graph(request)


def read_graph(request: ModelRequest) -> Graph:
    """Read a graph file within the budget of a model; a large one in a cage."""
    path = Path(request.source)
    budget = Budget(path.name, LIMITS)
    text = serde.unpack(_content(path))
    try:
        content = parse_json(text, budget, finite=False)
    except (ValueError, RecursionError) as error:
        if isinstance(error, ModelError):
            raise
        raise GraphError(f"{path.name} is damaged. Convert the model again.") from error
    graph = serde.from_content(content)
    for part in _parts(graph):
        budget.draw("nodes", len(part.nodes))
        budget.draw("edges", len(part.tensors) + sum(len(n.inputs) + len(n.outputs) for n in part.nodes))
        budget.draw_names((*part.tensors, *(n.name for n in part.nodes)))
    return graph


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"Cannot read {path}: {error.strerror or error}.") from error


def _parts(graph: Graph) -> Iterator[Graph]:
    """A graph and all bodies in it."""
    yield graph
    for node in graph.nodes:
        for body in node.bodies:
            yield from _parts(body)
