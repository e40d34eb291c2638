"""graph: exact costs of every node: multiply-accumulates, floating-point operations, parameters, bytes moved.

One multiply-accumulate (MAC) is two FLOPs. MACs count contractions only (convolution, matrix product, attention,
recurrence); FLOPs count those twice plus element-wise work. Bytes are those of the tensors at the kernel's edge: each
distinct element read once, each output written once. Views move nothing.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from operator import add, attrgetter

from foretell.graph.cost.arithmetic import mixture, multiply_accumulates, other_flops, time_steps
from foretell.graph.ir.graph import Graph
from foretell.graph.ir.layout import Layout, distinct_elements, layouts
from foretell.graph.ir.node import Node
from foretell.graph.ir.operators import Operator, lookup
from foretell.graph.ir.tensor import DTYPE_BITS, Tensor

TENSOR_CORE_DTYPES = frozenset({"fp16", "bf16", "fp8", "fp4", "int8", "uint8", "int4", "uint4"})


@dataclass(frozen=True, slots=True)
class Cost:
    """What one node, or many, take. ``launches`` is the number of kernels a framework starts for it."""

    macs: int = 0
    flops: int = 0
    parameters: int = 0
    parameter_bytes: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    activation_bytes: int = 0
    tensor_core_macs: int = 0
    launches: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(*map(add, _values(self), _values(other)))

    def __mul__(self, times: int) -> "Cost":
        return Cost(*(value * times for value in _values(self)))

    @property
    def bytes(self) -> int:
        """Bytes read and written."""
        return self.bytes_read + self.bytes_written


_values: Callable[[Cost], tuple[int, ...]] = attrgetter(*(f.name for f in fields(Cost)))


def total(costs: Iterable[Cost]) -> Cost:
    """The sum of many costs."""
    return Cost(*map(sum, zip(*map(_values, costs))))


@dataclass(frozen=True)
class CostTable:
    """The costs of a graph, node by node, with the sums people ask for."""

    graph: Graph
    nodes: tuple[Cost, ...]

    @cached_property
    def total(self) -> Cost:
        """Everything, including parameters that no node reads."""
        summed = total(self.nodes)
        idle = [t for t in self.graph.tensors.values() if t.kind == "parameter" and t.name not in self.graph.consumers]
        return summed + Cost(parameters=sum(t.elements for t in idle), parameter_bytes=sum(t.bytes for t in idle))

    def by_operator(self) -> dict[str, tuple[int, Cost]]:
        """For every operator how often it occurs and what it takes, most MACs (then bytes) first."""
        return self._grouped((node.op,) for node in self.graph.nodes)

    def by_module(self, depth: int | None = None) -> dict[str, tuple[int, Cost]]:
        """For every module path, down to ``depth``, the nodes in it and what they take, in model order."""
        counts = self._grouped((_prefixes(node.module, depth) for node in self.graph.nodes), ordered=False)
        return dict(sorted(counts.items(), key=lambda item: self._first_node[item[0]]))

    @cached_property
    def _first_node(self) -> Mapping[str, int]:
        first: dict[str, int] = {}
        for position, node in enumerate(self.graph.nodes):
            for prefix in _prefixes(node.module, None):
                first.setdefault(prefix, position)
        return first

    def _grouped(self, keys: Iterable[Iterable[str]], ordered: bool = True) -> dict[str, tuple[int, Cost]]:
        members: dict[str, list[Cost]] = {}
        for own, cost in zip(keys, self.nodes):
            for key in own:
                members.setdefault(key, []).append(cost)
        sums = {key: (len(costs), total(costs)) for key, costs in members.items()}
        if ordered:
            sums = dict(sorted(sums.items(), key=lambda item: (-item[1][1].macs, -item[1][1].bytes, item[0])))
        return sums

    @cached_property
    def unknown_operators(self) -> dict[str, float]:
        """Operators that nobody has entered, each with its share of the bytes that the graph moves."""
        everything = max(self.total.bytes, 1)
        shares: dict[str, float] = {}
        for node, cost in zip(self.graph.nodes, self.nodes):
            if lookup(node.op, node.domain).kind == "unknown":
                name = f"{node.domain}.{node.op}" if node.domain else node.op
                shares[name] = shares.get(name, 0.0) + cost.bytes / everything
        return shares

    @property
    def coverage(self) -> float:
        """The share of the graph's traffic that known operators cause: 1.0 when nothing is unknown."""
        return 1.0 - sum(self.unknown_operators.values()) if self.unknown_operators else 1.0


def _prefixes(path: str, depth: int | None) -> tuple[str, ...]:
    parts = path.split(".") if path else []
    return tuple(".".join(parts[:n]) for n in range(1, min(len(parts), depth or len(parts)) + 1))


def graph_costs(graph: Graph) -> CostTable:
    """The cost of one inference, node by node; found once and kept with the graph, which never changes."""
    kept: dict[str, CostTable] = vars(graph)
    if "_costs" not in kept:
        laid_out, owned = layouts(graph), _first_readers(graph)
        costs = (node_cost(graph, node, laid_out, owned.get(i, ())) for i, node in enumerate(graph.nodes))
        kept["_costs"] = CostTable(graph, tuple(costs))
    return kept["_costs"]


def _first_readers(graph: Graph) -> dict[int, list[Tensor]]:
    """Each parameter belongs to the first node that works on it, so that sums count shared weights once.

    A view (the transpose of a weight) passes it on to the node that reads the view.
    """
    owned: dict[int, list[Tensor]] = {}
    for tensor in graph.tensors.values():
        if tensor.kind == "parameter" and tensor.name in graph.consumers:
            reader = graph.consumers[tensor.name][0]
            while lookup(graph.nodes[reader].op, graph.nodes[reader].domain).kind == "view":
                passed_on = graph.consumers.get(graph.nodes[reader].outputs[0])
                if not passed_on:
                    break
                reader = passed_on[0]
            owned.setdefault(reader, []).append(tensor)
    return owned


def node_cost(graph: Graph, node: Node, laid_out: Mapping[str, Layout], owned: Iterable[Tensor] = ()) -> Cost:
    """The cost of one node at inference."""
    entry = lookup(node.op, node.domain)
    parameters, parameter_bytes = sum(t.elements for t in owned), sum(t.bytes for t in owned)
    if entry.kind == "control":
        return _control(node) + Cost(parameters=parameters, parameter_bytes=parameter_bytes)
    operands = [graph.tensors[i] if i else None for i in node.inputs]
    inputs = [t for t in operands if t is not None]
    outputs = [graph.tensors[o] for o in node.outputs if o]
    if not outputs or entry.kind == "free":
        return Cost(parameters=parameters, parameter_bytes=parameter_bytes)
    if entry.kind == "view":
        if not inputs or laid_out[outputs[0].name].storage != outputs[0].name:
            return Cost(parameters=parameters, parameter_bytes=parameter_bytes)
        moved = outputs[0].bytes  # the layout forbids a view: a copy
        return Cost(
            0, 0, parameters, parameter_bytes, bytes_read=moved, bytes_written=moved, activation_bytes=moved, launches=1
        )
    macs = multiply_accumulates(node, entry, operands, outputs[0])
    written = sum(t.bytes for t in outputs)
    kept = sum(t.bytes for t in outputs if laid_out[t.name].storage == t.name)
    eligible = macs if macs and _on_tensor_cores(node, inputs, outputs[0]) else 0
    return Cost(
        macs=macs,
        flops=2 * macs + other_flops(node, entry, operands, outputs),
        parameters=parameters,
        parameter_bytes=parameter_bytes,
        bytes_read=_bytes_read(node, entry, inputs, outputs, laid_out),
        bytes_written=written,
        activation_bytes=kept,
        tensor_core_macs=eligible,
        launches=_launches(node, entry, inputs),
    )


def _control(node: Node) -> Cost:
    """Loop and Scan run their body ``trips`` times; of If, the branch that takes more."""
    bodies = [graph_costs(body).total for body in node.bodies]
    if not bodies:
        return Cost()
    once = total(bodies)
    ran = max(bodies, key=lambda c: (c.flops, c.bytes)) if node.op == "If" else once * node.integer("trips", 1)
    return replace(ran, parameters=once.parameters, parameter_bytes=once.parameter_bytes)


def _bytes_read(
    node: Node, entry: Operator, inputs: list[Tensor], outputs: list[Tensor], laid_out: Mapping[str, Layout]
) -> int:
    distinct = {t.name: t for t in (inputs[1:] if node.op == "CopyTo" else inputs)}.values()
    sizes = [distinct_elements(t.shape, laid_out[t.name].strides) * DTYPE_BITS[t.dtype] // 8 for t in distinct]
    if entry.kind == "generator":
        return 0
    if entry.kind == "gather":
        return min(outputs[0].bytes, sizes[0]) + sum(sizes[1:])
    if entry.kind == "movement" and node.op not in ("Concat", "Col2Im"):
        return min(sum(sizes), outputs[0].bytes)
    if node.op == "GroupedMatMul":
        return sizes[0] + int(sizes[1] * _reached_share(inputs[1].shape[0], _rows(inputs[0]))) + sum(sizes[2:])
    if node.op == "MoE":
        return sizes[0] + int(sum(sizes[1:]) * _active_share(node, inputs))
    return sum(sizes)


def _reached_share(experts: int, rows: int) -> float:
    """The share of experts that at least one of ``rows`` is expected to reach when all are equally likely.

    >>> _reached_share(8, 1), round(_reached_share(8, 64), 3)
    (0.125, 1.0)
    """
    return 1 - (1 - 1 / experts) ** rows if experts else 1.0


def _active_share(node: Node, inputs: list[Tensor]) -> float:
    """The share of a mixture's experts that at least one token reaches, at most."""
    experts, chosen = mixture(node, list(inputs))
    return min(experts, _rows(inputs[0]) * chosen) / experts


def _rows(tensor: Tensor) -> int:
    return tensor.elements // tensor.shape[-1] if tensor.shape and tensor.shape[-1] else 0


def _launches(node: Node, entry: Operator, inputs: list[Tensor]) -> int:
    if entry.kind != "recurrent":
        return 1
    directions = 2 if node.text("direction") == "bidirectional" else node.integer("directions", 1)
    return max(1, time_steps(node, inputs[0])) * node.integer("layers", 1) * directions


def _on_tensor_cores(node: Node, inputs: list[Tensor], output: Tensor) -> bool:
    """Whether its MACs may run on tensor cores under PyTorch's defaults: TF32 for convolutions, not for products."""
    if node.op in ("Conv", "ConvTranspose", "FusedConv") and len(inputs) > 1:
        weight = inputs[1]
        if node.integer("group", 1) > 1 and len(weight.shape) > 1 and weight.shape[1] == 1:
            return False  # a depthwise convolution has no matrix to multiply
        return output.dtype in TENSOR_CORE_DTYPES or output.dtype == "fp32"
    operands = inputs[:2] or [output]
    return all(t.dtype in TENSOR_CORE_DTYPES for t in operands)
