"""Graph: finds operators that exporters split into several nodes, and gives these nodes one common origin.

Exporters write an attention, a GELU, a SiLU, a layer norm or a linear layer with a bias as a chain of small nodes. A
framework runs such a chain as one operator, so its cost must be counted once and its inner traffic not at all
(`foretell.graph.ir.groups`).

Idea: every pattern has an anchor, an operator that hardly occurs elsewhere (Softmax for attention, Erf for GELU, Sqrt
for a norm). A rule starts at the anchor and walks up and down the data flow. It follows an edge only if the tensor on
it has exactly one reader and is no output of the graph, because only then can the tensor disappear inside a kernel. If
the complete formula matches, all its nodes get the anchor's name as their ``origin``. A node joins one pattern at most:
the first that claims it.

Limits: the rules compare structure, never values, so they do not check that a factor is 0.5 or √2. The tanh form of
GELU is not recognised here. A graph in which any node already has an origin (PyTorch's exporter notes it) is left
alone.
"""

from collections.abc import Callable
from dataclasses import replace

from foretell.graph.ir.graph import Graph
from foretell.graph.ir.node import Node

# what may stand between the scores of an attention and their softmax: the scale and the mask
_SCALING = frozenset({"Mul", "Div", "Add", "Where", "Sub", "Cast", "Identity", "Clip"})


def tie_patterns(graph: Graph) -> Graph:
    """Return the graph with one common ``origin`` on the nodes of every pattern that was found."""
    if any(node.origin for node in graph.nodes):
        return graph
    finder = _Finder(graph)
    for position, node in enumerate(graph.nodes):
        rule = _RULES.get(node.op)
        if rule is not None:
            rule(finder, position)
    if not finder.tied:
        return graph
    nodes = []
    for position, node in enumerate(graph.nodes):
        anchor, op = finder.tied.get(position, (position, ""))
        nodes.append(replace(node, origin=graph.nodes[anchor].name, origin_op=op) if op else node)
    return replace(graph, nodes=tuple(nodes))


class _Finder:
    """Answers who produces and who reads a tensor, and records which nodes belong together."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.outputs = frozenset(graph.outputs)
        self.tied: dict[int, tuple[int, str]] = {}  # position of a node → (position of its anchor, joint operator)

    def producer(self, name: str) -> int | None:
        return self.graph.producers.get(name) if name else None

    def only_reader(self, position: int) -> int | None:
        """The only node that reads the outputs of a node; None if there are several, or if an output leaves the graph.

        Only a tensor with a single reader can stay inside a fused kernel.
        """
        outputs = [o for o in self.graph.nodes[position].outputs if o]
        readers = [r for o in outputs for r in self.graph.consumers.get(o, ())]
        return readers[0] if len(readers) == 1 and self.outputs.isdisjoint(outputs) else None

    def readers(self, position: int) -> tuple[int, ...]:
        return tuple(
            dict.fromkeys(r for o in self.graph.nodes[position].outputs if o for r in self.graph.consumers.get(o, ()))
        )

    def node(self, position: int | None) -> Node | None:
        return self.graph.nodes[position] if position is not None else None

    def op(self, position: int | None) -> str:
        node = self.node(position)
        return node.op if node else ""

    def tie(self, anchor: int, members: list[int], op: str) -> None:
        if any(m in self.tied for m in members):
            return  # an earlier pattern has claimed one of them
        for member in members:
            self.tied[member] = (anchor, op)

    def source(self, position: int, ops: frozenset[str]) -> int | None:
        """The producer of one of a node's inputs, if it is one of ``ops`` and has no other reader."""
        for name in self.graph.nodes[position].inputs:
            producer = self.producer(name)
            if producer is not None and self.op(producer) in ops and self.only_reader(producer) == position:
                return producer
        return None


def _attention(finder: _Finder, softmax: int) -> None:
    """MatMul → scaling and mask → Softmax → MatMul."""
    members = [softmax]
    # upwards to the product of queries and keys; six steps are enough for a scale, a mask and their casts
    current: int | None = softmax
    for _ in range(6):
        current = finder.source(current, _SCALING | {"MatMul"}) if current is not None else None
        if current is None:
            return
        members.append(current)
        if finder.op(current) == "MatMul":
            break
    else:
        return
    # downwards to the product with the values
    current = softmax
    for _ in range(4):
        current = finder.only_reader(current)
        if current is None:
            return
        members.append(current)
        if finder.op(current) == "MatMul":
            finder.tie(softmax, members, "Attention")
            return
        if finder.op(current) not in ("Dropout", "Cast", "Identity", "Where"):
            return


def _gelu(finder: _Finder, erf: int) -> None:
    """x · ½ · (1 + erf(x / √2))."""
    members = [erf]
    scaled = finder.source(erf, frozenset({"Div", "Mul"}))
    if scaled is not None:
        members.append(scaled)
    current: int | None = erf
    for expected_ops in (("Add",), ("Mul",), ("Mul",)):
        current = finder.only_reader(current) if current is not None else None
        if current is None or finder.op(current) not in expected_ops:
            break
        members.append(current)
        half = finder.source(current, frozenset({"Mul"}))  # exporters differ in where they multiply by ½
        if expected_ops == ("Mul",) and half is not None and half not in members:
            members.append(half)
    if len(members) >= 4:  # fewer would be a plain error function with a factor
        finder.tie(erf, members, "Gelu")


def _silu(finder: _Finder, sigmoid: int) -> None:
    """x · sigmoid(x)."""
    reader = finder.only_reader(sigmoid)
    if (
        reader is not None
        and finder.op(reader) == "Mul"
        and finder.graph.nodes[sigmoid].inputs[0] in finder.graph.nodes[reader].inputs
    ):
        finder.tie(sigmoid, [sigmoid, reader], "Silu")


def _layer_norm(finder: _Finder, root: int) -> None:
    """(x − mean) / sqrt(var + ε) · γ + β, anchored at the square root; an RMS norm subtracts no mean."""
    variance = finder.source(root, frozenset({"Add"}))
    mean = finder.source(variance, frozenset({"ReduceMean"})) if variance is not None else None
    square = finder.source(mean, frozenset({"Pow", "Mul"})) if mean is not None else None
    if variance is None or mean is None or square is None:
        return
    members = [root, variance, mean, square]
    centred = finder.producer(finder.graph.nodes[square].inputs[0])
    op = "RMSNormalization"
    # x − mean has two readers: the square, and the division at the end
    if centred is not None and finder.op(centred) == "Sub" and len(finder.readers(centred)) <= 2:
        average = finder.source(centred, frozenset({"ReduceMean"}))
        members.extend([centred] + ([average] if average is not None else []))
        op = "LayerNormalization"
    current: int | None = root
    for expected_ops in (("Div", "Reciprocal", "Mul"), ("Mul",), ("Add", "Mul")):
        current = finder.only_reader(current) if current is not None else None
        if current is None or finder.op(current) not in expected_ops:
            break
        members.append(current)
    finder.tie(root, members, op)


def _bias(finder: _Finder, product: int) -> None:
    """A matrix product with a weight, followed by the addition of a bias vector."""
    node = finder.graph.nodes[product]
    if len(node.inputs) < 2 or finder.graph.tensors[node.inputs[1]].kind != "parameter":
        return
    reader = finder.only_reader(product)
    if reader is not None and finder.op(reader) == "Add":
        addends = [i for i in finder.graph.nodes[reader].inputs if i not in node.outputs]
        if (
            len(addends) == 1
            and finder.graph.tensors[addends[0]].kind == "parameter"
            and len(finder.graph.tensors[addends[0]].shape) == 1
        ):
            finder.tie(product, [product, reader], "Gemm")


_RULES: dict[str, Callable[[_Finder, int], None]] = {
    "Softmax": _attention,
    "Erf": _gelu,
    "Sigmoid": _silu,
    "Sqrt": _layer_norm,
    "MatMul": _bias,
}
