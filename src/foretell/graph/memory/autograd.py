"""Graph: what PyTorch's autograd saves in the forward pass: which tensors need gradients, what each node keeps.

Idea: a gradient flows to every floating-point parameter and to everything that is computed from one. A node with such
an input and output has a backward, and keeps what its derivative formula reads until that backward has run. Three
things are kept: tensors of the graph (`saved_for_backward`), blocks that no tensor of the graph holds
(`extra_saved_blocks`: indices of a max pool, means of a norm, masks, cuDNN's reserve of an LSTM), and nothing at all.

Source: ``tools/autograd/derivatives.yaml`` of PyTorch. A product saves an operand only if the other one needs a
gradient. An addition saves nothing. ReLU and Sigmoid save their result, not their input. An operator that works in
place and needs its input for the derivative clones that input first. What cuDNN and fused attention keep was measured
(``docs/lab/0010-memory.md``).

Limits: gradient checkpointing, hooks and custom ``autograd.Function`` are not modelled; all parameters are taken to be
trained; gradients with respect to the model's inputs are not computed.
"""

from collections.abc import Mapping

from foretell.graph.ir.graph import Graph
from foretell.graph.ir.layout import Layout, layouts
from foretell.graph.ir.node import Node
from foretell.graph.ir.operators import lookup
from foretell.graph.ir.strides import contiguous
from foretell.graph.ir.tensor import Tensor
from foretell.graph.memory.workspaces import INDEX_BYTES, is_fused, padded_mask_bytes, score_bytes

STATISTIC_BYTES = 4  # means, inverse deviations and log-sum-exps are fp32
# the derivatives of these are written in terms of the result, so that their in-place form needs no clone
_INPLACE_SAVES_RESULT = frozenset(
    {"Relu", "Clip", "LeakyRelu", "Elu", "Selu", "Celu", "ThresholdedRelu", "Sigmoid", "Tanh", "Exp", "Sqrt", "Rsqrt"}
)
_PRODUCTS = frozenset({"Mul", "Addcmul", "Lerp"})
# the gradient of these flows on unchanged, as the same block
_GRADIENT_PASSES = frozenset({"Add", "Sub", "Sum", "CopyTo", "Concat", "ReduceSum", "Identity", "Dropout"})
_RESERVED_PER_STEP = {
    "LSTM": 6,
    "GRU": 5,
    "RNN": 2,
}  # cuDNN's reserve, in values per hidden unit and step: gates, states

_CELL_WORKSPACES = {"LSTMCell": 4, "GRUCell": 5}  # what the kernel of the gates computed, in values per hidden unit


def needing_gradients(graph: Graph) -> frozenset[str]:
    """The tensors that a gradient flows to: floating-point parameters and everything computed from them."""
    needing = {t.name for t in graph.tensors.values() if t.kind == "parameter" and t.is_differentiable}
    for node in graph.nodes:
        stops = lookup(node.op, node.domain).kind == "free" or node.integer("detached", 0)
        if not needing.isdisjoint(node.inputs) and not stops:
            needing.update(o for o in node.outputs if o and graph.tensors[o].is_differentiable)
            if base := overwritten(graph, node):
                needing.add(base)  # whoever reads it from here on reads what was written into it
    return frozenset(needing)


def loss_output(graph: Graph, needing: frozenset[str]) -> str:
    """The output that the loss is taken on: the first one that needs a gradient, as in measured steps; "" for none."""
    return next((name for name in graph.outputs if name in needing), "")


def reached_by_loss(graph: Graph, needing: frozenset[str]) -> frozenset[str]:
    """The tensors that get a gradient: of those that need one, the ones that the loss depends on.

    Heads that only other outputs read, and distances that end in an ``argmin``, have no backward.
    """
    reached = {loss_output(graph, needing)} - {""}
    for node in reversed(graph.nodes):
        is_read = not reached.isdisjoint(node.outputs) or overwritten(graph, node) in reached
        if is_read and differentiates(node, needing):
            reached.update(name for name in (*node.inputs, *node.outputs) if name in needing)
    return frozenset(reached)


def overwritten(graph: Graph, node: Node) -> str:
    """The tensor that a node writes a part of: ``base[:, :8] = x`` copies into a view of it; "" for other nodes."""
    if node.op != "CopyTo" or not node.outputs or not node.outputs[0]:
        return ""
    storage = layouts(graph)[node.outputs[0]].storage
    return storage if storage not in node.outputs and graph.tensors[storage].kind == "activation" else ""


def differentiates(node: Node, needing: frozenset[str]) -> bool:
    """Whether the node has a backward: an input and an output of it need gradients."""
    return not needing.isdisjoint(node.inputs) and not needing.isdisjoint(node.outputs)


def saved_for_backward(graph: Graph, node: Node, needing: frozenset[str]) -> tuple[str, ...]:
    """The activations and inputs that a node keeps until its backward has run."""
    if not differentiates(node, needing):
        return ()
    names = dict.fromkeys(n for n in _saved(graph, node, needing) if n)
    return tuple(n for n in names if graph.tensors[n].kind in ("activation", "input"))


def _saved(graph: Graph, node: Node, needing: frozenset[str]) -> tuple[str, ...]:
    """The tensors that the derivative formula of a node reads."""
    entry = lookup(node.op, node.domain)
    inputs = tuple(node.inputs)
    if entry.kind == "attention":
        return (*inputs[:3], *node.outputs[:1])
    if entry.kind == "recurrent":
        return (*inputs, *node.outputs)
    # the positions; ``gather`` also keeps what it picks from, and ``index_add`` what it adds
    if entry.kind == "gather":
        return inputs if node.op == "GatherElements" else inputs[1:]
    # the places of the largest values; without them, the values and where they were looked for
    if node.op in ("ReduceMax", "ReduceMin"):
        return tuple(node.outputs[1:]) or (*inputs[:1], *node.outputs)
    if entry.kind == "scatter":
        return inputs[1:3] if node.integer("rows", 0) else inputs[1:2]
    # a mirrored or repeated edge is summed up by a kernel that reads the input again; a real transform keeps its input
    if (node.op == "Pad" and node.text("mode") in ("reflect", "replicate")) or (
        node.op == "DFT" and inputs and graph.tensors[inputs[0]].is_float
    ):
        return inputs[:1]
    if entry.kind == "contraction" and node.op not in ("MoE", "Bilinear") and (node.op != "Einsum" or len(inputs) == 2):
        # inputs[1::-1] are the same two operands the other way round: each is saved for the gradient of its partner
        return tuple(i for i, partner in zip(inputs[:2], inputs[1::-1]) if partner in needing)
    if node.op in _PRODUCTS:
        return tuple(n for i, n in enumerate(inputs) if any(o in needing for o in (*inputs[:i], *inputs[i + 1 :])))
    # d(a/b)/da needs b alone; d(a/b)/db needs both
    if node.op == "Div":
        return inputs if len(inputs) > 1 and inputs[1] in needing else inputs[1:]
    if node.op == "Where":
        return tuple(i for i in inputs if i and graph.tensors[i].dtype == "bool")
    if entry.kind == "normalisation" and entry.saves == "inputs":
        return inputs[:1]
    if node.integer("inplace", 0) and entry.saves == "inputs":
        return node.outputs if node.op in _INPLACE_SAVES_RESULT else inputs[1:]  # extra_saved_blocks has the clone
    return {"inputs": inputs, "output": node.outputs, "nothing": ()}[entry.saves]


def extra_saved_blocks(graph: Graph, node: Node, needing: frozenset[str]) -> list[int]:
    """The sizes of what a node keeps besides its inputs and outputs: indices, masks, statistics, a cloned input."""
    if not differentiates(node, needing) or not node.outputs or not node.outputs[0]:
        return []
    out = graph.tensors[node.outputs[0]]
    entry = lookup(node.op, node.domain)
    if node.op in ("MaxPool", "AdaptiveMaxPool"):
        return [out.elements * INDEX_BYTES] if len(node.outputs) < 2 else []
    # one byte of mask for each element
    if node.op == "DropoutMask":
        return [out.elements]
    if node.op == "Attention" and not is_fused(graph, node):
        operands = [graph.tensors[i].elements * STATISTIC_BYTES for i in node.inputs[:3] if out.dtype != "fp32"]
        return [score_bytes(graph, node), *operands]  # in half precision it multiplies, and keeps, copies in fp32
    if entry.kind == "attention":
        return [out.elements // max(out.shape[-1], 1) * STATISTIC_BYTES, padded_mask_bytes(graph, node)]
    if node.op in _CELL_WORKSPACES:
        return [_CELL_WORKSPACES[node.op] * out.bytes]
    if entry.kind == "recurrent":
        return [_RESERVED_PER_STEP.get(node.op, 0) * out.bytes * node.integer("layers", 1)]
    # a mean and an inverse deviation for each row, group or channel
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
    """The number of means that a normalisation computes."""
    if node.op in ("BatchNormalization", "InstanceNormalization", "GroupNormalization"):
        items = out.shape[0] if out.shape and node.op != "BatchNormalization" else 1
        channels = out.shape[1] if len(out.shape) > 1 else 1
        return items * (node.integer("num_groups", channels) if node.op == "GroupNormalization" else channels)
    normalised_shape = node.integers("shape")
    normalised_sizes = out.shape[-len(normalised_shape) :] if normalised_shape else out.shape[-1:]
    count = out.elements
    for size in normalised_sizes:
        count //= max(size, 1)
    return count


def gradient_passes(graph: Graph, node: Node, name: str, laid_out: Mapping[str, Layout]) -> bool:
    """Whether the gradient of an input is the gradient of the output, or a view of it, and so takes no new memory."""
    if not node.outputs[0]:
        return False
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
        return False  # their gradients are padded with zeros, or summed
    return node.op != "Reshape" or laid_out[node.outputs[0]].strides == contiguous(out.shape)
