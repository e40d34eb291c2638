"""Graph: the cost of a training step: what backward and the optimizer add to the forward pass.

Idea: the backward of a contraction is one contraction of the same size for each operand that needs a gradient. Flash
attention recomputes its scores in backward, so it takes five products where the forward takes two. The backward of an
element-wise operator reads the gradient and what the forward saved.

Source: the formulas of ``torch.utils.flop_counter``; a test compares the counts with it.

Limits: the backward of control flow is taken to cost twice its forward, and gradient checkpointing is not counted.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from foretell.errors import InputError
from foretell.frozen import dataclass
from foretell.graph.cost.arithmetic import first_layer_macs
from foretell.graph.cost.node_costs import Cost, CostTable, graph_costs, total
from foretell.graph.ir.graph import Graph
from foretell.graph.ir.node import Node
from foretell.graph.ir.operators import lookup
from foretell.graph.memory.autograd import differentiates, needing_gradients, reached_by_loss, saved_for_backward


@dataclass(frozen=True, slots=True)
class Optimizer:
    """What an optimizer does for each element of a parameter.

    Attributes:
        flops: Floating-point operations.
        states: Numbers that it keeps between steps, such as a momentum.
        reads: Numbers that an update reads.
        writes: Numbers that an update writes.
        temporaries: Numbers that are alive only during the update.
    """

    flops: int
    states: int
    reads: int
    writes: int
    temporaries: int


OPTIMIZERS = {
    "sgd": Optimizer(flops=4, states=1, reads=3, writes=2, temporaries=0),  # with momentum
    "adamw": Optimizer(flops=14, states=2, reads=4, writes=3, temporaries=1),
}
_PARTS = ("Slice", "Select", "Diagonal")
STATE_BYTES = 4  # optimizer states and the parameters they belong to are fp32


def find_optimizer(name: str) -> Optimizer:
    """Return the optimizer called ``name``."""
    if name not in OPTIMIZERS:
        raise InputError(f"Unknown optimizer {name!r}. Choose from: {', '.join(OPTIMIZERS)}.")
    return OPTIMIZERS[name]


@dataclass(frozen=True)
class TrainingStep:
    """The costs of the forward pass, of the backward of each forward node, and of the optimizer.

    ``reached`` are the tensors that get a gradient.
    """

    forward: CostTable
    backward: tuple[Cost, ...]
    optimizer: Cost
    reached: frozenset[str]

    @cached_property
    def total(self) -> Cost:
        """The cost of the whole step."""
        return self.forward.total + total(self.backward) + self.optimizer


def training_step(graph: Graph, optimizer: str = "sgd") -> TrainingStep:
    """Return the cost of one training step of a graph. It is computed once and cached on the graph."""
    cache: dict[str, TrainingStep] = vars(graph).setdefault("_training_steps", {})  # a graph never changes
    if optimizer not in cache:
        cache[optimizer] = _training_step(graph, optimizer)
    return cache[optimizer]


def _training_step(graph: Graph, optimizer: str) -> TrainingStep:
    forward = graph_costs(graph)
    reached = reached_by_loss(graph, needing_gradients(graph))
    readers = Counter(name for node in graph.nodes for name in dict.fromkeys(node.inputs) if name in reached)
    backward = tuple(
        _backward_cost(graph, node, cost, reached, readers) for node, cost in zip(graph.nodes, forward.nodes)
    )
    update, count = find_optimizer(optimizer), graph.parameter_count
    moved = count * STATE_BYTES
    # a multi-tensor update handles many parameters in one launch
    cost = Cost(
        flops=count * update.flops,
        bytes_read=moved * update.reads,
        bytes_written=moved * update.writes,
        launches=1 if count else 0,
    )
    return TrainingStep(forward, backward, cost, reached)


def _backward_cost(
    graph: Graph, node: Node, forward: Cost, needing: frozenset[str], readers: Mapping[str, int]
) -> Cost:
    """The cost of the backward of one node, from the cost of its forward."""
    if not differentiates(node, needing):
        return Cost()
    kind = lookup(node.op, node.domain).kind
    if kind == "view":
        return _backward_of_view(graph, node, forward, readers)
    if kind == "control":
        doubled = forward * 2  # the usual ratio of backward to forward; the body is not looked into
        return replace(doubled, parameters=0, parameter_bytes=0, activation_bytes=0)
    incoming = sum(graph.tensors[o].bytes for o in node.outputs if o in needing)
    outgoing = sum(graph.tensors[i].bytes for i in dict.fromkeys(node.inputs) if i in needing)
    saved = sum(graph.tensors[s].bytes for s in saved_for_backward(graph, node, needing))
    if kind in ("contraction", "recurrent"):
        macs, products = _backward_macs(graph, node, forward, needing)
        weights = sum(graph.tensors[i].bytes for i in node.inputs[1:2] if i and graph.tensors[i].kind == "parameter")
        return Cost(
            macs=macs,
            flops=2 * macs + (forward.flops - 2 * forward.macs),
            bytes_read=products * incoming + saved + weights,
            bytes_written=outgoing,
            tensor_core_macs=macs if forward.tensor_core_macs else 0,
            launches=forward.launches * products,
        )
    if kind == "attention":
        # forward: q·kᵀ and p·v; backward: both gradients of each, and q·kᵀ once more
        macs = forward.macs * 5 // 2
        eligible = forward.tensor_core_macs * 5 // 2
        return Cost(
            macs=macs,
            flops=forward.flops * 5 // 2,
            bytes_read=incoming + saved,
            bytes_written=outgoing,
            tensor_core_macs=eligible,
            launches=2,
        )
    return Cost(flops=2 * forward.flops, bytes_read=incoming + saved, bytes_written=outgoing, launches=forward.launches)


def _backward_of_view(graph: Graph, node: Node, forward: Cost, readers: Mapping[str, int]) -> Cost:
    """The cost of the backward of a view, which is no view where the view has left something out or repeated it.

    The gradient of a part is as large as the whole: zeros, into which the gradient of the part is copied. If others
    read the whole, too, their gradients are added to it. The parts of a split are concatenated. What was repeated is
    summed. Any other view is a view in backward, and where the forward had to copy, the backward copies, too.
    """
    whole = graph.tensors[node.inputs[0]].bytes
    parts = sum(graph.tensors[name].bytes for name in node.outputs if name)
    if node.op == "Expand" and parts > whole:
        return Cost(flops=parts // 4, bytes_read=parts, bytes_written=whole, launches=1)
    if node.op == "Split" or len(node.outputs) > 1:
        return Cost(bytes_read=parts, bytes_written=whole, launches=1)
    if node.op in _PARTS and (parts < whole or node.op == "Select"):
        added = readers[node.inputs[0]] > 1
        return Cost(
            flops=whole // 4 if added else 0,
            bytes_read=parts + 2 * whole * added,
            bytes_written=whole + parts + whole * added,
            launches=2 + added,
        )
    return Cost(bytes_read=forward.bytes_read, bytes_written=forward.bytes_written, launches=forward.launches)


def _backward_macs(graph: Graph, node: Node, forward: Cost, needing: frozenset[str]) -> tuple[int, int]:
    """The MACs of a backward and its number of products: one for each operand that needs a gradient."""
    if lookup(node.op, node.domain).kind == "recurrent":
        # where the sequence is an input of the model, no gradient for it is computed
        skipped = 0 if node.inputs[0] in needing else first_layer_macs(graph, node)
        return 2 * forward.macs - skipped, 2
    operands = node.inputs if node.op in ("Einsum", "Bilinear", "MoE") else node.inputs[:2]
    # the weights of all experts together count as one operand
    products = sum(i in needing for i in operands) if node.op != "MoE" else 1 + (node.inputs[0] in needing)
    return forward.macs * products, products
