"""Frontends: a mutable graph for rewriting. Nodes can be removed, changed and added; `finish` sorts and validates."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import prod

from foretell.graph import Graph, Node, Tensor
from foretell.graph.ir.node import Attribute
from foretell.graph.ir.tensor import TensorKind

WEIGHTS = ("parameter", "buffer", "constant")


class Draft:
    """A graph under construction. Nodes have positions; who makes and who reads each tensor is kept up to date."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.tensors = dict(graph.tensors)
        self.inputs = graph.inputs
        self.outputs = frozenset(graph.outputs)
        self.nodes: dict[int, Node] = dict(enumerate(graph.nodes))
        self.makers: dict[str, int] = {}
        self._readers: dict[str, set[int]] = defaultdict(set)
        for position, node in self.nodes.items():
            self._enter(position, node)
        self._next = len(self.nodes)
        self._fresh = 0

    def _enter(self, position: int, node: Node) -> None:
        for name in node.outputs:
            if name:
                self.makers[name] = position
        for name in node.inputs:
            if name:
                self._readers[name].add(position)

    # ── queries ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def current_nodes(self) -> Iterator[Node]:
        """Iterate over the nodes while the graph changes: removed ones are skipped, added ones are not visited."""
        for position in sorted(self.nodes):
            if position in self.nodes:
                yield self.nodes[position]

    def maker(self, name: str) -> Node | None:
        """The node that makes a tensor, or None."""
        position = self.makers.get(name)
        return self.nodes.get(position) if position is not None else None

    def made_by(self, name: str, *ops: str) -> Node | None:
        """The node that makes a tensor, if it is one of these operators."""
        node = self.maker(name)
        return node if node is not None and node.op in ops else None

    def readers(self, name: str) -> list[Node]:
        """The nodes that read a tensor, in order."""
        return [self.nodes[p] for p in sorted(self._readers[name])]

    def only_reader(self, name: str) -> Node | None:
        """The only node that reads a tensor; None if there are several, or if the tensor is an output of the graph."""
        readers = self._readers[name]
        return self.nodes[next(iter(readers))] if len(readers) == 1 and name not in self.outputs else None

    def is_weight(self, name: str) -> bool:
        """Whether a tensor is a weight of the model, not the result of a node."""
        return bool(name) and name not in self.makers and self.tensors[name].kind in WEIGHTS

    def is_scalar(self, name: str) -> bool:
        """Whether a tensor is a weight with a single element."""
        return self.is_weight(name) and self.tensors[name].elements == 1

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor."""
        return self.tensors[name].shape

    # ── changes ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def tensor(self, like: str, shape: tuple[int, ...], kind: TensorKind | None = None) -> str:
        """Add a tensor with the dtype of another; returns its name."""
        self._fresh += 1
        # "weight~3": the name of the original and a number that is still free
        stem = like.partition("~")[0]
        name = f"{stem}~{self._fresh}"
        while name in self.tensors:
            self._fresh += 1
            name = f"{stem}~{self._fresh}"
        source = self.tensors[like]
        self.tensors[name] = Tensor(name, shape, source.dtype, kind or source.kind)
        return name

    def weight(self, name: str, shape: tuple[int, ...], kind: TensorKind | None = None) -> str:
        """Return a weight in another shape, of as many elements, or of another kind.

        The old weight disappears with its last reader.
        """
        source = self.tensors[name]
        if source.shape == shape and kind in (None, source.kind):
            return name
        assert prod(shape) == source.elements
        return self.tensor(name, shape, kind)

    def remove(self, nodes: Iterable[Node]) -> None:
        """Remove nodes."""
        for old in nodes:
            position = self._position(old)
            node = self.nodes.pop(position)  # the caller's copy may be older: its inputs may have changed since
            for name in node.outputs:
                if self.makers.get(name) == position:
                    del self.makers[name]
            for name in node.inputs:
                self._readers[name].discard(position)

    def put(
        self,
        op: str,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        attributes: dict[str, Attribute] | None = None,
        *,
        like: Node,
    ) -> Node:
        """Add a node; it belongs to the module of ``like``."""
        position, self._next = self._next, self._next + 1
        node = Node(f"{outputs[0]}:{op}", op, inputs, outputs, attributes or {}, module=like.module)
        self.nodes[position] = node
        self._enter(position, node)
        return node

    def change(self, node: Node, **values: object) -> Node:
        """Replace a node by one with other inputs, outputs or attributes."""
        position = self._position(node)
        self.remove([node])
        changed: Node = replace(node, **values)  # type: ignore[arg-type]
        self.nodes[position] = changed
        self._enter(position, changed)
        return changed

    def redirect(self, old: str, new: str) -> None:
        """Make all readers of ``old`` read ``new``."""
        for node in self.readers(old):
            self.change(node, inputs=tuple(new if i == old else i for i in node.inputs))

    def replace(
        self, nodes: Iterable[Node], op: str, inputs: tuple[str, ...], output: str, **attributes: Attribute
    ) -> None:
        """Replace several nodes by one that makes ``output``."""
        replaced = list({id(n): n for n in nodes}.values())
        like = next(n for n in replaced if output in n.outputs)
        self.remove(replaced)
        self.put(op, inputs, (output,), dict(attributes), like=like)

    def _position(self, node: Node) -> int:
        return next(self.makers[o] for o in node.outputs if o)

    def finish(self) -> Graph:
        """Return the graph, sorted and validated, without tensors that are no longer used."""
        nodes = self._live()
        used = {n for node in nodes for n in (*node.inputs, *node.outputs)} | set(self.inputs) | self.outputs
        # weights that no node of the original graph read stay: they take memory
        never_used = {n for n in self.graph.tensors if n not in self.graph.consumers and n not in self.graph.producers}
        tensors = {n: t for n, t in self.tensors.items() if n in used or n in never_used}
        return Graph.build(
            self.graph.name,
            nodes,
            tensors,
            self.inputs,
            self.graph.outputs,
            batch_size=self.graph.batch_size,
            warnings=self.graph.warnings,
            metadata=self.graph.metadata,
        )

    def _live(self) -> list[Node]:
        """The nodes that the outputs of the graph depend on."""
        waiting = [*self.outputs]
        live: set[int] = set()
        while waiting:
            position = self.makers.get(waiting.pop())
            if position is not None and position not in live:
                live.add(position)
                waiting.extend(i for i in self.nodes[position].inputs if i)
        return [self.nodes[p] for p in sorted(live)]
