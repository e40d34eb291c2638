"""Web: the graphs of the models that a worker has read last, in its memory.

Reading a ResNet-50 from ONNX takes three times as long as predicting it. An upload is known by its name, which is the
hash of its content (`foretell.web.admission.uploads`), a spec by itself.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from foretell.graph import Graph
from foretell.workflows.workload import load_graph

READING = ("input_shape", "mode", "context", "allow_unknown", "use_cache")
_BY_CONTENT = re.compile(r"[0-9a-f]{64}\.\w+")
MOST_NODES = 200_000  # of all graphs together: about 200 MiB


class Graphs:
    """The most recently used graphs, up to a number of nodes."""

    def __init__(self, most_nodes: int = MOST_NODES) -> None:
        self._most_nodes = most_nodes
        self._graphs: OrderedDict[tuple[object, ...], Graph] = OrderedDict()
        self._nodes = 0
        self.read = 0  # models that were not here

    def of(self, model: str, options: Mapping[str, Any], check: Callable[[str], None]) -> Graph:
        """The graph of a model: a file, named by its content, or a spec; ``check`` refuses one before it is read."""
        reading = {name: options[name] for name in READING if options.get(name) is not None}
        settings = ((name, tuple(value) if isinstance(value, list) else value) for name, value in reading.items())
        path = Path(model)
        key = path.name if path.is_absolute() else model, *settings
        if path.is_absolute() and not _BY_CONTENT.fullmatch(path.name):  # another file may have this name tomorrow
            self.read += 1
            check(model)
            return load_graph(model, **reading)
        graph = self._graphs.get(key)
        if graph is not None:
            self._graphs.move_to_end(key)
            return graph
        self.read += 1
        check(model)
        graph = self._graphs[key] = load_graph(model, **reading)
        self._nodes += len(graph.nodes)
        while self._nodes > self._most_nodes and len(self._graphs) > 1:
            self._nodes -= len(self._graphs.popitem(last=False)[1].nodes)
        return graph
