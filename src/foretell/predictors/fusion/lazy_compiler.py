"""Predictors: a simulation of a lazy compiler: what PyTorch's Inductor has in hand when it meets each node.

Idea. Inductor lowers a graph node by node. It does not write a pointwise result to memory; it keeps an expression and
inlines it into every kernel that reads it. It writes ("realizes") a value only where it must: where a library's product
reads it, where it is an output, and where the expression has grown so large (too many buffers read, or too many
operations) that computing it again for each reader would cost more than a buffer. This module follows these rules and
returns the size of each node's expression, whether the node is written, and which edges were inlined. They are features
of `foretell.predictors.fusion.edges`, not the answer: the trees learn where the real compiler differs.

A bias is not part of its product: for a convolution it is a pointwise sum after it, and for a matrix product too, where
single precision is followed by pointwise work alone.

Source: ``torch/_inductor/graph.py`` and ``ir.py`` (``StorageBox.realize_hint``, ``should_realize_on_reuse``) and the
thresholds of ``torch/_inductor/config.py``. Limits: the counts of reads and operations of a composite operator are
estimates (`_READ_BY`, `_COMPUTES`), and the scheduler, which fuses the written buffers afterwards, is not simulated.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from foretell.graph import Graph
from foretell.graph.ir.node import Node
from foretell.graph.ir.operators import lookup

_VIEWS = frozenset(("view", "free"))
_PRODUCTS = frozenset(("contraction", "attention", "recurrent"))
_ALWAYS_WRITTEN = frozenset(("reduction", "sort", "scatter"))
_WHOLE_POOLS = frozenset(("AdaptiveAveragePool", "GlobalAveragePool"))
_CONVOLUTIONS = frozenset(("Conv", "ConvTranspose"))
# Inductor's thresholds: reads of an expression that has several readers, reads of any expression, and operations
_READS_AGAIN, _READS, _OPERATIONS = 4, 8, 30
_MAX_EXTRA = 60
# how often an operator reads its input once it is decomposed, and how many operations it becomes
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
_STATISTICS = {
    "BatchNormalization": 0,
    "RMSNormalization": 1,
}  # buffers of statistics that a normalisation reads; others read two


@dataclass(frozen=True)
class Lowered:
    """For each node the buffers its expression reads, its operations, and whether it is written in the end.

    ``inlined`` are the edges whose source is still an expression when the target is met.
    """

    reads: list[int]
    operations: list[int]
    written: list[bool]
    inlined: set[tuple[int, int]]


def lower(graph: Graph, makers: Sequence[Sequence[int]], readers: Sequence[Sequence[int]]) -> Lowered:
    """Simulate the lowering of a graph."""
    return _Lowering(graph, makers, readers).run()


@dataclass
class _Lowering:
    graph: Graph
    makers: Sequence[Sequence[int]]
    readers: Sequence[Sequence[int]]
    kinds: list[str] = field(init=False)
    base: list[int] = field(init=False)  # the node whose value a view shows
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
        sizes: list[tuple[int, int]] = []
        for number, node in enumerate(self.graph.nodes):
            is_product = self.kinds[number] in _PRODUCTS
            for maker in self.makers[number]:
                if is_product:
                    self.written[self.base[maker]] = True
                elif not self.written[self.base[maker]]:
                    inlined.add((maker, number))
            self._lower_node(number, node)
            base = self.base[number]
            # before the decision below: these are the numbers that the decision uses
            sizes.append((len(self.reads[base]), self.operations[base]))
            if self._is_written_out(number, node):
                self.written[base] = True
        in_the_end = [self.written[base] for base in self.base]
        return Lowered([reads for reads, _ in sizes], [operations for _, operations in sizes], in_the_end, inlined)

    def _lower_node(self, number: int, node: Node) -> None:
        """Record what the compiler knows about a node after lowering it."""
        kind, makers = self.kinds[number], self.makers[number]
        input_kinds = [self.graph.tensors[name].kind for name in node.inputs if name]
        if kind in _VIEWS and makers:
            self.base[number] = self.base[makers[0]]
        elif kind in _PRODUCTS:
            weights = sum(input_kind not in ("activation", "input") for input_kind in input_kinds)
            if weights > 1 and self._is_bias_separate(number, node):
                # the library writes the product; adding the bias is an expression of one operation on it
                self.reads[number], self.operations[number] = frozenset((number, _extra_buffer(number, 0))), 1
            else:
                self.written[number] = True
        else:
            extra = sum(input_kind != "activation" for input_kind in input_kinds)
            if kind == "normalisation":
                extra += _STATISTICS.get(node.op, 2)
            own_buffers = (_extra_buffer(number, place) for place in range(min(extra, _MAX_EXTRA)))
            self.reads[number] = frozenset(own_buffers).union(*(self._buffers_read(maker) for maker in makers))
            inlined_operations = sum(
                0 if self.written[self.base[maker]] else self.operations[self.base[maker]] for maker in makers
            )
            self.operations[number] = inlined_operations + _COMPUTES.get(node.op, 1)
            self.written[number] = kind in _ALWAYS_WRITTEN or node.op in _WHOLE_POOLS

    def _buffers_read(self, maker: int) -> frozenset[int]:
        """The buffers that a reader of a node reads: the node's own, or those of its expression."""
        base = self.base[maker]
        return frozenset((base,)) if self.written[base] else self.reads[base]

    def _is_bias_separate(self, number: int, node: Node) -> bool:
        """Whether the bias of a product is added by a kernel of its own."""
        if node.op in _CONVOLUTIONS:
            return True
        single = self.graph.tensors[node.outputs[0]].dtype == "fp32"
        return node.op == "Gemm" and single and self._is_read_by_pointwise(number)

    def _is_read_by_pointwise(self, number: int) -> bool:
        """Whether a node has readers, and all of them, views looked through, are pointwise."""
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
        """Whether the compiler writes a node's value now, by its thresholds."""
        base = self.base[number]
        reads, readers = len(self.reads[base]), self.readers[number]
        if any(name in self.graph.outputs for name in node.outputs) or reads > _READS:
            return True
        # a single read is always inlined: nothing would be computed twice
        if sum(_READ_BY.get(self.graph.nodes[reader].op, 1) for reader in readers) < 2:
            return False
        by_product = any(self.kinds[reader] in _PRODUCTS for reader in readers)
        return (by_product and reads > 1) or reads > _READS_AGAIN or self.operations[base] > _OPERATIONS


def _extra_buffer(number: int, place: int) -> int:
    """A number for a weight, or for a statistic of a normalisation; negative, so that it is no node."""
    return -(number * (_MAX_EXTRA + 1) + place + 1)
