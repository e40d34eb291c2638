"""graph: a training step: what backward and the optimizer add to the forward pass, in work and in memory.

Backward of a contraction is one contraction of the same size for each operand that needs a gradient; flash attention
recomputes its scores, so five products against two. Element-wise backward reads the gradient and what was saved.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from foretell.errors import InputError
from foretell.graph.cost import Cost, CostTable, graph_costs, total
from foretell.graph.graph import Graph
from foretell.graph.layout import layouts
from foretell.graph.memory import Peak, rounded, state_bytes
from foretell.graph.node import Node
from foretell.graph.ops import lookup


@dataclass(frozen=True, slots=True)
class Optimizer:
    """What an update does to each parameter: floating-point operations, and how many copies it keeps, reads, writes."""

    flops: int
    states: int
    reads: int
    writes: int
    temporaries: int


OPTIMIZERS = {
    "sgd": Optimizer(flops=4, states=1, reads=3, writes=2, temporaries=0),  # with momentum
    "adamw": Optimizer(flops=14, states=2, reads=4, writes=3, temporaries=1),
}
STATE_BYTES = 4  # optimizer states are fp32 where parameters are


def find_optimizer(name: str) -> Optimizer:
    """The optimizer called ``name``."""
    if name not in OPTIMIZERS:
        raise InputError(f"Unknown optimizer {name!r}. Choose from: {', '.join(OPTIMIZERS)}.")
    return OPTIMIZERS[name]


def needing_gradients(graph: Graph) -> frozenset[str]:
    """Tensors that a gradient flows to: floating parameters and whatever is computed from them."""
    needing = {t.name for t in graph.tensors.values() if t.kind == "parameter" and t.is_float}
    for node in graph.nodes:
        if lookup(node.op).kind != "free" and any(i in needing for i in node.inputs):
            needing.update(o for o in node.outputs if o and graph.tensors[o].is_float)
    return frozenset(needing)


@dataclass(frozen=True)
class TrainingStep:
    """Costs of forward, backward (for each forward node) and the optimizer."""

    forward: CostTable
    backward: tuple[Cost, ...]
    optimizer: Cost

    @cached_property
    def total(self) -> Cost:
        """Everything one step does."""
        return self.forward.total + total(self.backward) + self.optimizer


def training_step(graph: Graph, optimizer: str = "sgd") -> TrainingStep:
    """The cost of one training step of a graph."""
    forward = graph_costs(graph)
    needing = needing_gradients(graph)
    backward = tuple(_backward_cost(graph, node, cost, needing) for node, cost in zip(graph.nodes, forward.nodes))
    update, count = find_optimizer(optimizer), graph.parameter_count
    moved = count * STATE_BYTES
    # a fused multi-tensor update handles many parameters in a launch
    cost = Cost(flops=count * update.flops, bytes_read=moved * update.reads, bytes_written=moved * update.writes, launches=1 if count else 0)
    return TrainingStep(forward, backward, cost)


def _backward_cost(graph: Graph, node: Node, forward: Cost, needing: frozenset[str]) -> Cost:
    kind = lookup(node.op).kind
    gradients = [i for i in dict.fromkeys(node.inputs) if i in needing]
    if not gradients or not any(o in needing for o in node.outputs):
        return Cost()
    incoming = sum(graph.tensors[o].bytes for o in node.outputs if o in needing)
    outgoing = sum(graph.tensors[i].bytes for i in gradients)
    saved = sum(graph.tensors[s].bytes for s in saved_for_backward(graph, node))
    if kind == "view":
        return Cost(bytes_read=forward.bytes_read, bytes_written=forward.bytes_written, launches=forward.launches)
    if kind in ("contraction", "recurrent"):
        operands = sum(1 for i in node.inputs[:2] if i in needing) if kind == "contraction" and node.op != "MoE" else 2
        weights = sum(graph.tensors[i].bytes for i in node.inputs[1:2] if graph.tensors[i].kind == "parameter")
        return Cost(
            macs=forward.macs * operands,
            flops=forward.flops * operands,
            bytes_read=operands * incoming + saved + weights,
            bytes_written=outgoing,
            tensor_core_macs=forward.tensor_core_macs * operands,
            launches=forward.launches * max(operands, 1),
        )
    if kind == "attention":
        macs = forward.macs * 5 // 2
        eligible = forward.tensor_core_macs * 5 // 2
        return Cost(macs=macs, flops=forward.flops * 5 // 2, bytes_read=incoming + saved, bytes_written=outgoing, tensor_core_macs=eligible, launches=2)
    if kind == "control":
        return Cost(**{name: getattr(forward, name) * 2 for name in ("macs", "flops", "bytes_read", "bytes_written", "tensor_core_macs", "launches")})
    return Cost(flops=2 * forward.flops, bytes_read=incoming + saved, bytes_written=outgoing, launches=forward.launches)


def saved_for_backward(graph: Graph, node: Node) -> tuple[str, ...]:
    """The activations a node keeps until its backward has run."""
    entry = lookup(node.op)
    if entry.kind == "attention":
        names: Iterable[str] = (*node.inputs[:3], *node.outputs[:1])
    elif entry.saves == "inputs":
        names = node.inputs
    elif entry.saves == "output":
        names = node.outputs
    else:
        names = ()
    return tuple(n for n in dict.fromkeys(names) if n and graph.tensors[n].kind in ("activation", "input"))


def training_peak(graph: Graph, optimizer: str = "sgd") -> Peak:
    """Peak memory of a training step: parameters, gradients, optimizer states, and activations while backward needs them."""
    update = find_optimizer(optimizer)
    laid_out, needing = layouts(graph), needing_gradients(graph)
    size = {n: rounded(t.bytes) for n, t in graph.tensors.items()}
    parameters = sum(rounded(t.elements * STATE_BYTES) for t in graph.tensors.values() if t.kind == "parameter")
    state = state_bytes(graph) + parameters * update.states

    holders: dict[str, int] = defaultdict(int)  # how many nodes still need this storage for backward
    for node in graph.nodes:
        if any(i in needing for i in node.inputs):
            for storage in {laid_out[n].storage for n in saved_for_backward(graph, node)}:
                holders[storage] += 1
    readers: dict[str, int] = defaultdict(int)
    for node in graph.nodes:
        for storage in {laid_out[i].storage for i in node.inputs if i}:
            readers[storage] += 1

    live = state + sum(size[n] for n in graph.inputs)
    peak, where = live, ""
    for node in graph.nodes:
        live += sum(size[o] for o in node.outputs if o and laid_out[o].storage == o) + _mask_bytes(graph, node)
        if live > peak:
            peak, where = live, node.name
        for storage in {laid_out[i].storage for i in node.inputs if i}:
            readers[storage] -= 1
            if readers[storage] == 0 and not holders[storage] and graph.tensors[storage].kind == "activation":
                live -= size[storage]
    gradients: dict[str, int] = {o: size[o] for o in graph.outputs if o in needing}
    live += sum(gradients.values())
    parameter_gradients: set[str] = set()
    for node in reversed(graph.nodes):
        if not any(i in needing for i in node.inputs) or not any(o in needing for o in node.outputs):
            continue
        is_view = lookup(node.op).kind == "view"
        freed = sum(gradients.pop(o, 0) for o in node.outputs)
        if is_view:
            live -= freed
            freed = 0
        for name in dict.fromkeys(node.inputs):
            if name not in needing:
                continue
            if graph.tensors[name].kind == "parameter":
                if name not in parameter_gradients:
                    parameter_gradients.add(name)
                    live += rounded(graph.tensors[name].bytes)
            elif name not in gradients:
                gradients[name] = size[name]
                live += size[name]
        if live > peak:
            peak, where = live, f"{node.name} (backward)"
        live -= freed + _mask_bytes(graph, node)
        for storage in {laid_out[n].storage for n in saved_for_backward(graph, node)}:
            holders[storage] -= 1
            if holders[storage] == 0 and graph.tensors[storage].kind == "activation":
                live -= size[storage]
    at_update = state + parameters * (1 + update.temporaries)
    if at_update > peak:
        peak, where = at_update, f"{optimizer} update"
    return Peak(peak, state, where)


def _mask_bytes(graph: Graph, node: Node) -> int:
    """What a node keeps beside its inputs and outputs: indices of a max pool, the mask of a dropout."""
    if not node.outputs or not node.outputs[0]:
        return 0
    elements = graph.tensors[node.outputs[0]].elements
    if node.op == "MaxPool":
        return rounded(elements * 8)
    return rounded(elements) if node.op == "DropoutMask" else 0
