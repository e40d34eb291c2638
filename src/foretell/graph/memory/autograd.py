"""graph: what automatic differentiation keeps and makes: the tensors that need gradients, and what each node saves.

The rules are those of PyTorch's ``derivatives.yaml``: a product saves an operand only if the other needs a gradient,
an addition saves nothing, an operator that works in place and whose derivative needs its input clones that input first.
"""

from collections.abc import Mapping

from foretell.graph.ir.graph import Graph
from foretell.graph.ir.layout import Layout, contiguous
from foretell.graph.ir.node import Node
from foretell.graph.ir.operators import lookup
from foretell.graph.ir.tensor import Tensor
from foretell.graph.memory.workspaces import is_fused, padded_mask_bytes, score_bytes

STATISTIC_BYTES = 4  # means, inverse deviations and log-sum-exps are fp32
INDEX_BYTES = 8
# the derivative of the in-place form is written in terms of the result
_INPLACE_SAVES_RESULT = frozenset(
    {"Relu", "Clip", "LeakyRelu", "Elu", "Selu", "Celu", "ThresholdedRelu", "Sigmoid", "Tanh", "Exp", "Sqrt", "Rsqrt"}
)
_PRODUCTS = frozenset({"Mul", "Addcmul", "Lerp"})
_GRADIENT_PASSES = frozenset({"Add", "Sub", "Sum", "CopyTo", "Concat", "ReduceSum", "Identity", "Dropout"})
_RESERVED_A_STEP = {"LSTM": 6, "GRU": 5, "RNN": 2}  # what cuDNN keeps for each hidden unit and step: gates and states


def needing_gradients(graph: Graph) -> frozenset[str]:
    """Tensors that a gradient flows to: floating parameters and whatever is computed from them."""
    needing = {t.name for t in graph.tensors.values() if t.kind == "parameter" and t.is_float}
    for node in graph.nodes:
        if not needing.isdisjoint(node.inputs) and lookup(node.op, node.domain).kind != "free":
            needing.update(o for o in node.outputs if o and graph.tensors[o].is_float)
    return frozenset(needing)


def differentiates(node: Node, needing: frozenset[str]) -> bool:
    """Whether the node has a backward."""
    return not needing.isdisjoint(node.inputs) and not needing.isdisjoint(node.outputs)


def saved_for_backward(graph: Graph, node: Node, needing: frozenset[str]) -> tuple[str, ...]:
    """The activations and inputs that a node keeps until its backward has run."""
    if not differentiates(node, needing):
        return ()
    names = dict.fromkeys(n for n in _saved(graph, node, needing) if n)
    return tuple(n for n in names if graph.tensors[n].kind in ("activation", "input"))


def _saved(graph: Graph, node: Node, needing: frozenset[str]) -> tuple[str, ...]:
    entry = lookup(node.op, node.domain)
    inputs = tuple(node.inputs)
    if entry.kind == "attention":
        return (*inputs[:3], *node.outputs[:1])
    if entry.kind == "recurrent":
        return (*inputs, *node.outputs)
    if entry.kind == "contraction" and node.op not in ("MoE", "Einsum", "Bilinear"):
        return tuple(i for i, other in zip(inputs[:2], inputs[1::-1]) if other in needing)
    if node.op in _PRODUCTS:
        return tuple(n for i, n in enumerate(inputs) if any(o in needing for o in (*inputs[:i], *inputs[i + 1 :])))
    if node.op == "Div":
        return inputs if len(inputs) > 1 and inputs[1] in needing else inputs[1:]
    if node.op == "Where":
        return tuple(i for i in inputs if i and graph.tensors[i].dtype == "bool")
    if entry.kind == "normalisation" and entry.saves == "inputs":
        return inputs[:1]
    if node.integer("inplace", 0) and entry.saves == "inputs":
        return node.outputs if node.op in _INPLACE_SAVES_RESULT else inputs[1:]  # the first is cloned
    return {"inputs": inputs, "output": node.outputs, "nothing": ()}[entry.saves]


def extra_saved_blocks(graph: Graph, node: Node, needing: frozenset[str]) -> list[int]:
    """The sizes of what a node keeps beside its inputs and outputs: indices, masks, statistics, a cloned input."""
    if not differentiates(node, needing) or not node.outputs or not node.outputs[0]:
        return []
    out = graph.tensors[node.outputs[0]]
    entry = lookup(node.op, node.domain)
    if node.op in ("MaxPool", "AdaptiveMaxPool"):
        return [out.elements * INDEX_BYTES] if len(node.outputs) < 2 else []
    if node.op == "DropoutMask":
        return [out.elements]
    if node.op == "Attention" and not is_fused(graph, node):
        operands = [graph.tensors[i].elements * STATISTIC_BYTES for i in node.inputs[:3] if out.dtype != "fp32"]
        return [score_bytes(graph, node), *operands]  # what half precision multiplies is copies in fp32
    if entry.kind == "attention":
        return [out.elements // max(out.shape[-1], 1) * STATISTIC_BYTES, padded_mask_bytes(graph, node)]
    if entry.kind == "recurrent":
        return [_RESERVED_A_STEP.get(node.op, 0) * out.bytes * node.integer("layers", 1)]
    if entry.kind == "normalisation" and entry.saves == "inputs":
        return [_statistics(node, out) * STATISTIC_BYTES] * 2
    if (
        node.integer("inplace", 0)
        and entry.saves == "inputs"
        and node.op not in (*_INPLACE_SAVES_RESULT, *_PRODUCTS, "Div", "Where")
    ):
        return [out.bytes]
    return []


def _statistics(node: Node, out: Tensor) -> int:
    """How many means a normalisation has."""
    if node.op in ("BatchNormalization", "InstanceNormalization", "GroupNormalization"):
        items = out.shape[0] if out.shape and node.op != "BatchNormalization" else 1
        channels = out.shape[1] if len(out.shape) > 1 else 1
        return items * (node.integer("num_groups", channels) if node.op == "GroupNormalization" else channels)
    normalised = node.integers("shape")
    width = out.shape[-len(normalised) :] if normalised else out.shape[-1:]
    count = out.elements
    for size in width:
        count //= max(size, 1)
    return count


def gradient_passes(graph: Graph, node: Node, name: str, laid_out: Mapping[str, Layout]) -> bool:
    """Whether the gradient of an input is the gradient of the output itself, or a view of it: no new memory."""
    out = graph.tensors[node.outputs[0]]
    tensor = graph.tensors[name]
    if tensor.dtype != out.dtype:
        return False
    if node.op in ("Concat", "ReduceSum"):
        return True
    if node.op in _GRADIENT_PASSES:
        return tensor.shape == out.shape
    if lookup(node.op, node.domain).kind != "view" or len([o for o in node.outputs if o]) > 1:
        return False
    if node.op in ("Slice", "Select", "Expand", "Unfold", "Diagonal"):
        return False
    return node.op != "Reshape" or laid_out[node.outputs[0]].strides == contiguous(out.shape)
