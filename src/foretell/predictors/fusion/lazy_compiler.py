"""Features: what a compiler that computes lazily has in hand at each node, by the rules of PyTorch's Inductor.

Such a compiler keeps an expression instead of a tensor and puts it into every kernel that reads it. It writes a value
out where a product reads it, where it is returned, and where the expression has grown too large to be computed again by
each of its readers. A bias is no part of its product: that of a convolution never, that of a matrix product not where
single precision goes into pointwise work alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from foretell.graph import Graph
from foretell.graph.ir.node import Node
from foretell.graph.ir.operators import lookup

_VIEWS = frozenset(("view", "free"))
_PRODUCTS = frozenset(("contraction", "attention", "recurrent"))
_AT_ONCE = frozenset(("reduction", "sort", "scatter"))
_WHOLE_POOLS = frozenset(("AdaptiveAveragePool", "GlobalAveragePool"))
_CONVOLUTIONS = frozenset(("Conv", "ConvTranspose"))
_READS_AGAIN, _READS, _OPERATIONS = 4, 8, 30
_MOST_BESIDE = 60
# operators that read their input several times once they are taken apart, and how much they compute
_READ_BY = {
    "LayerNormalization": 2, "GroupNormalization": 2, "InstanceNormalization": 2, "RMSNormalization": 2, "Softmax": 2,
    "LogSoftmax": 2, "LpNormalization": 2, "Gelu": 2, "FastGelu": 2, "QuickGelu": 2, "Silu": 2, "Swish": 2,
    "HardSwish": 2, "Mish": 2, "LeakyRelu": 2, "PRelu": 2, "Elu": 3, "Selu": 3, "Softplus": 3,
}  # fmt: skip
_COMPUTES = {
    "BatchNormalization": 10, "LayerNormalization": 7, "GroupNormalization": 7, "InstanceNormalization": 7,
    "RMSNormalization": 5, "Softmax": 4, "Gelu": 8, "FastGelu": 10, "QuickGelu": 5, "Silu": 5, "HardSwish": 7,
    "HardSigmoid": 6, "Mish": 7, "Sigmoid": 4, "Elu": 7, "LeakyRelu": 4, "Clip": 4, "Relu6": 4,
}  # fmt: skip
_STATISTICS = {"BatchNormalization": 0, "RMSNormalization": 1}  # that are computed before, and read


@dataclass(frozen=True)
class Lowered:
    """Of each node the buffers its expression reads, its operations, whether it is written out in the end.

    ``inlined`` are the edges whose source is no buffer when the target is met.
    """

    reads: list[int]
    operations: list[int]
    written: list[bool]
    inlined: set[tuple[int, int]]


def lower(graph: Graph, makers: Sequence[Sequence[int]], readers: Sequence[Sequence[int]]) -> Lowered:
    """Go through a graph as the compiler does, node by node."""
    return _Lowering(graph, makers, readers).run()


@dataclass
class _Lowering:
    graph: Graph
    makers: Sequence[Sequence[int]]
    readers: Sequence[Sequence[int]]
    kinds: list[str] = field(init=False)
    base: list[int] = field(init=False)  # the node whose value a view looks at
    reads: list[frozenset[int]] = field(init=False)
    operations: list[int] = field(init=False)
    written: list[bool] = field(init=False)

    def __post_init__(self) -> None:
        count = len(self.graph.nodes)
        self.kinds = [lookup(node.op, node.domain).kind for node in self.graph.nodes]
        self.base = list(range(count))
        self.reads = [frozenset[int]()] * count
        self.operations = [0] * count
        self.written = [False] * count

    def run(self) -> Lowered:
        inlined: set[tuple[int, int]] = set()
        found: list[tuple[int, int]] = []
        for number, node in enumerate(self.graph.nodes):
            product = self.kinds[number] in _PRODUCTS
            for maker in self.makers[number]:
                if product:
                    self.written[self.base[maker]] = True
                elif not self.written[self.base[maker]]:
                    inlined.add((maker, number))
            self._meet(number, node)
            base = self.base[number]
            found.append((len(self.reads[base]), self.operations[base]))
            if self._is_written_out(number, node):
                self.written[base] = True
        in_the_end = [self.written[base] for base in self.base]
        return Lowered([each for each, _ in found], [each for _, each in found], in_the_end, inlined)

    def _meet(self, number: int, node: Node) -> None:
        """What is known of a node once it was met."""
        kind, makers = self.kinds[number], self.makers[number]
        given = [self.graph.tensors[name].kind for name in node.inputs if name]
        if kind in _VIEWS and makers:
            self.base[number] = self.base[makers[0]]
        elif kind in _PRODUCTS:
            weights = sum(each not in ("activation", "input") for each in given)
            if weights > 1 and self._is_bias_apart(number, node):
                self.reads[number], self.operations[number] = frozenset((number, _beside(number, 0))), 1
            else:
                self.written[number] = True
        else:
            extra = sum(each != "activation" for each in given)
            if kind == "normalisation":
                extra += _STATISTICS.get(node.op, 2)
            beside = (_beside(number, place) for place in range(min(extra, _MOST_BESIDE)))
            self.reads[number] = frozenset(beside).union(*(self._read_of(maker) for maker in makers))
            before = sum(0 if self.written[self.base[each]] else self.operations[self.base[each]] for each in makers)
            self.operations[number] = before + _COMPUTES.get(node.op, 1)
            self.written[number] = kind in _AT_ONCE or node.op in _WHOLE_POOLS

    def _read_of(self, maker: int) -> frozenset[int]:
        base = self.base[maker]
        return frozenset((base,)) if self.written[base] else self.reads[base]

    def _is_bias_apart(self, number: int, node: Node) -> bool:
        if node.op in _CONVOLUTIONS:
            return True
        single = self.graph.tensors[node.outputs[0]].dtype == "fp32"
        return node.op == "Gemm" and single and self._is_read_by_pointwise(number)

    def _is_read_by_pointwise(self, number: int) -> bool:
        waiting, seen = [number], False
        while waiting:
            for reader in self.readers[waiting.pop()]:
                seen = True
                if self.kinds[reader] in _VIEWS:
                    waiting.append(reader)
                elif self.kinds[reader] != "elementwise":
                    return False
        return seen

    def _is_written_out(self, number: int, node: Node) -> bool:
        base = self.base[number]
        reads, readers = len(self.reads[base]), self.readers[number]
        if any(name in self.graph.outputs for name in node.outputs) or reads > _READS:
            return True
        if sum(_READ_BY.get(self.graph.nodes[reader].op, 1) for reader in readers) < 2:
            return False
        by_product = any(self.kinds[reader] in _PRODUCTS for reader in readers)
        return (by_product and reads > 1) or reads > _READS_AGAIN or self.operations[base] > _OPERATIONS


def _beside(number: int, place: int) -> int:
    """A weight, or the mean and the like of a normalisation: a buffer of its own."""
    return -(number * (_MOST_BESIDE + 1) + place + 1)
