"""Graph: the copies that matrix products make of their operands, because a kernel reads plain matrices.

Idea: a batched product folds all leading axes of an operand into one, and an ``einsum`` permutes and merges the axes of
each operand (`foretell.graph.ir.strides`). If the strides allow no view of that form, PyTorch copies the operand. At
inference the copy lives while the product runs. In training it is the copy that is saved for backward, not the operand.

Source: ``matmul``, ``linear`` and ``einsum`` in ATen/native of PyTorch.
"""

from collections import defaultdict
from collections.abc import Mapping
from math import prod

from foretell.graph.ir.graph import Graph
from foretell.graph.ir.layout import Layout, einsum_plan
from foretell.graph.ir.node import Node
from foretell.graph.ir.strides import is_contiguous, viewed_strides
from foretell.graph.ir.tensor import Tensor


def operand_copies(graph: Graph, node: Node, laid_out: Mapping[str, Layout]) -> dict[str, int]:
    """The operands that a node copies before it multiplies them, with the bytes of each copy."""
    if node.op in ("MatMul", "Gemm"):
        sizes = {name: _folded_copy(graph, node, name, laid_out) for name in node.inputs[:2] if name}
        return {name: size for name, size in sizes.items() if size}
    if node.op == "DFT" and node.inputs and node.inputs[0]:
        return _padded_signal(graph.tensors[node.inputs[0]], graph.tensors[node.outputs[0]])
    plan = einsum_plan(graph, node, laid_out) if node.op == "Einsum" else None
    if plan is None:
        return {}
    names = [node.inputs[position] for position in plan.copied if position >= 0]
    return {name: graph.tensors[name].bytes for name in names}


def kept_copies(graph: Graph, node: Node, laid_out: Mapping[str, Layout], needing: frozenset[str]) -> list[int]:
    """The bytes of those copies that are saved for backward: a copy serves the gradient of what it is multiplied with.

    A bias is not multiplied, and asks for no copy. An ``einsum`` multiplies its operands one after the other, so that
    an operand meets all those before it, and the first one meets the second.
    """
    copies = operand_copies(graph, node, laid_out)
    if node.op == "DFT":  # the signal is saved in any case
        return list(copies.values())
    plan = einsum_plan(graph, node, laid_out) if copies and node.op == "Einsum" else None
    order = plan.order if plan else (0, 1)
    partners: dict[str, list[str]] = defaultdict(list)
    for place, position in enumerate(order if copies else ()):
        partners[node.inputs[position]] += [node.inputs[other] for other in order[:place] or order[1:2]]
    return [size for name, size in copies.items() if not needing.isdisjoint(partners[name])]


def einsum_between(graph: Graph, node: Node, laid_out: Mapping[str, Layout]) -> list[int]:
    """The bytes of the results in between of an ``einsum`` with three or more operands, and of copies of them."""
    plan = einsum_plan(graph, node, laid_out) if node.op == "Einsum" and len(node.inputs) > 2 else None
    if plan is None:
        return []
    out = graph.tensors[node.outputs[0]]
    item_bytes = out.bytes // max(out.elements, 1)
    copies = [size for position, size in zip(plan.copied, plan.copies) if position < 0]
    return [size * item_bytes for size in (*plan.between, *copies)]


def _padded_signal(signal: Tensor, spectrum: Tensor) -> dict[str, int]:
    """A real Fourier transform of more points than its input has pads a copy of it with zeros."""
    if not signal.is_float or len(signal.shape) != len(spectrum.shape):
        return {}
    for size, frequencies in zip(signal.shape, spectrum.shape):
        points = 2 * (frequencies - 1)
        if size != frequencies and 0 < size < points:
            return {signal.name: signal.bytes // size * points}
    return {}


def _folded_copy(graph: Graph, node: Node, name: str, laid_out: Mapping[str, Layout]) -> int:
    """The size of the copy of an operand whose leading axes are folded into one; 0 where a view does."""
    tensor, out = graph.tensors[name], graph.tensors[node.outputs[0]]
    shape, strides = tensor.shape, laid_out[name].strides
    if len(out.shape) < 3 or len(shape) < 3:
        return 0
    if node.op == "Gemm":  # a linear layer folds all rows into one matrix
        return 0 if is_contiguous(shape, strides) else tensor.bytes
    if viewed_strides(shape, strides, (prod(shape[:-2]), *shape[-2:])) is not None:
        return 0
    return tensor.bytes
