"""Graph: the cost of every node: multiply-accumulates, FLOPs, parameters, bytes moved, kernel launches.

One multiply-accumulate (MAC) is two FLOPs. MACs count only contractions (convolution, matrix product, attention,
recurrent layers). FLOPs count those twice, plus all other arithmetic. Bytes are what a kernel must move at least: each
distinct element is read once, each output is written once. Views move nothing.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from functools import cached_property
from operator import add, attrgetter

from foretell.errors import GraphError
from foretell.frozen import dataclass
from foretell.graph.cost.arithmetic import mixture, multiply_accumulates, other_flops, time_steps
from foretell.graph.ir.graph import Graph
from foretell.graph.ir.layout import Layout, distinct_elements, layouts
from foretell.graph.ir.node import Node
from foretell.graph.ir.operators import Operator, lookup
from foretell.graph.ir.passes import MATMUL
from foretell.graph.ir.tensor import DTYPE_BITS, Tensor
from foretell.graph.signatures import Memo, Record
from foretell.graph.wiring import numbers_of, wiring

TENSOR_CORE_DTYPES = frozenset({"fp16", "bf16", "fp8", "fp4", "int8", "uint8", "int4", "uint4"})


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one node, or of many. ``launches`` is the number of kernels that a framework starts."""

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
    """Add up costs."""
    return Cost(*map(sum, zip(*map(_values, costs))))


@dataclass(frozen=True)
class CostTable:
    """The cost of every node of a graph, with sums over operators and modules."""

    graph: Graph
    nodes: tuple[Cost, ...]

    @cached_property
    def total(self) -> Cost:
        """The cost of the whole graph, including parameters that no node reads."""
        summed, unread = total(self.nodes), self._unread
        return summed + unread if unread is not None else summed

    def summed(self, name: str) -> int:
        """One of the numbers of `total`, which is faster to find than all of them."""
        own: int = sum(map(attrgetter(name), self.nodes))
        unread = self._unread
        return own + getattr(unread, name) if unread is not None else own

    @property
    def _unread(self) -> Cost | None:
        """The cost of parameters that no node reads, None where there are none."""
        graph = self.graph
        if "unread" not in graph.structure:
            edges = wiring(graph)
            read = edges.first_readers
            graph.structure["unread"] = [
                edges.names[tensor] for tensor in numbers_of(graph, "parameter") if tensor not in read
            ]
        unread = [graph.tensors[name] for name in graph.structure["unread"]]
        if not unread:
            return None
        return Cost(parameters=sum(t.elements for t in unread), parameter_bytes=sum(t.bytes for t in unread))

    def by_operator(self) -> dict[str, tuple[int, Cost]]:
        """For every operator its number of nodes and its cost, sorted by MACs, then by bytes."""
        return self._grouped((node.op,) for node in self.graph.nodes)

    def by_module(self, depth: int | None = None) -> dict[str, tuple[int, Cost]]:
        """For every module path, down to ``depth``, its number of nodes and its cost, in the order of the model."""
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
        """Sum the costs of nodes by key; a node may have several keys, such as all modules around it."""
        members: dict[str, list[Cost]] = {}
        for node_keys, cost in zip(keys, self.nodes):
            for key in node_keys:
                members.setdefault(key, []).append(cost)
        sums = {key: (len(costs), total(costs)) for key, costs in members.items()}
        if ordered:
            sums = dict(sorted(sums.items(), key=lambda item: (-item[1][1].macs, -item[1][1].bytes, item[0])))
        return sums

    @cached_property
    def unknown_operators(self) -> dict[str, float]:
        """The operators that are not in the table, each with its share of the bytes that the graph moves."""
        structure, nodes = self.graph.structure, self.graph.nodes
        if "unknown" not in structure:
            kinds = wiring(self.graph).kinds
            structure["unknown"] = [position for position, kind in enumerate(kinds) if kind == "unknown"]
        if not structure["unknown"]:
            return {}
        total_bytes = max(self.total.bytes, 1)
        shares: dict[str, float] = {}
        for position in structure["unknown"]:
            node = nodes[position]
            # a foreign operator that is called like a known one has its domain in its name already
            op = node.op.rpartition("::")[2]
            name = f"{node.domain}.{op}" if node.domain else op
            shares[name] = shares.get(name, 0.0) + self.nodes[position].bytes / total_bytes
        return shares

    @property
    def coverage(self) -> float:
        """The share of the graph's bytes that known operators move: 1.0 if every operator is known."""
        return 1.0 - sum(self.unknown_operators.values()) if self.unknown_operators else 1.0


def _prefixes(path: str, depth: int | None) -> tuple[str, ...]:
    # "a.b.c" → "a", "a.b", "a.b.c"
    parts = path.split(".") if path else []
    return tuple(".".join(parts[:n]) for n in range(1, min(len(parts), depth or len(parts)) + 1))


def graph_costs(graph: Graph) -> CostTable:
    """Return the cost of one inference, node by node. It is computed once and cached on the graph."""
    cache: dict[str, CostTable] = vars(graph)  # writes past the frozen dataclass: a graph never changes
    if "_costs" not in cache:
        laid_out = layouts(graph)
        types, records = laid_out.types, laid_out.records
        costs = [record.cost for record in records]
        if not all(costs):
            pairs = zip(graph.nodes, records)
            costs = [record.cost or _first_cost(graph, node, record) for node, record in pairs]
        for position, tensors in _first_readers(graph):
            owned = tuple([types[tensor] for tensor in tensors])
            record = records[position]
            costs[position] = record.owning.get(owned) or _owning_cost(record, owned, laid_out.memo)
        cache["_costs"] = CostTable(graph, tuple(costs))
    return cache["_costs"]


def _first_cost(graph: Graph, node: Node, record: Record) -> Cost:
    """The cost of the first node of a signature, without parameters."""
    cost = node_cost(graph, node, layouts(graph))
    if min(_values(cost)) < 0:  # an attribute that counts something, such as num_heads, is below zero
        below = {name: value for name, value in node.attributes.items() if isinstance(value, int) and value < 0}
        raise GraphError(f"The cost of node {node.name!r} ({node.op}) would be negative; check {below}.")
    record.cost = cost
    return cost


def _owning_cost(record: Record, types: tuple[int, ...], memo: Memo) -> Cost:
    """The cost of a node to which parameters of these types belong."""
    cost: Cost = record.cost
    parameters, parameter_bytes = sum([memo.elements[t] for t in types]), sum([memo.bytes[t] for t in types])
    found = Cost(
        cost.macs, cost.flops, cost.parameters + parameters, cost.parameter_bytes + parameter_bytes, cost.bytes_read,
        cost.bytes_written, cost.activation_bytes, cost.tensor_core_macs, cost.launches,
    )  # fmt: skip
    record.own(types, found)
    return found


def _first_readers(graph: Graph) -> list[tuple[int, list[int]]]:
    """Assign each parameter to the first node that works on it, so that sums count shared weights once.

    A view, such as the transpose of a weight, passes the parameter on to the node that reads the view.
    """
    if "first readers" not in graph.structure:
        edges = wiring(graph)
        first, kinds = edges.first_readers, edges.kinds
        owned: dict[int, list[int]] = {}
        for tensor in numbers_of(graph, "parameter"):
            reader = first.get(tensor)
            if reader is None:
                continue
            while kinds[reader] == "view":
                next_reader = first.get(edges.outputs[reader][0])
                if next_reader is None:
                    break
                reader = next_reader
            known = owned.get(reader)
            if known is None:
                owned[reader] = [tensor]
            else:
                known.append(tensor)
        graph.structure["first readers"] = list(owned.items())
    return graph.structure["first readers"]  # type: ignore[no-any-return]


def node_cost(graph: Graph, node: Node, laid_out: Mapping[str, Layout]) -> Cost:
    """Return the cost of one node at inference, without the parameters that it reads."""
    entry = lookup(node.op, node.domain)
    if entry.kind == "control":
        return _control(node)
    operands = [graph.tensors[i] if i else None for i in node.inputs]
    inputs = [t for t in operands if t is not None]
    outputs = [graph.tensors[o] for o in node.outputs if o]
    if not outputs or entry.kind == "free":
        return Cost()
    if entry.kind == "view":
        if not inputs or laid_out[outputs[0].name].storage != outputs[0].name:
            return Cost()
        moved = outputs[0].bytes  # the strides do not allow a view: it copies
        return Cost(bytes_read=moved, bytes_written=moved, activation_bytes=moved, launches=1)
    macs = multiply_accumulates(node, entry, operands, outputs[0])
    written = sum(t.bytes for t in outputs)
    allocated = sum(t.bytes for t in outputs if laid_out[t.name].storage == t.name)  # in-place results take no memory
    tf32 = entry.kind == "contraction" and graph.metadata.get(MATMUL) == "tf32"
    eligible = macs if macs and _on_tensor_cores(node, inputs, outputs[0], tf32=tf32) else 0
    return Cost(
        macs=macs,
        flops=2 * macs + other_flops(node, entry, operands, outputs),
        bytes_read=_bytes_read(node, entry, inputs, outputs, laid_out),
        bytes_written=written,
        activation_bytes=allocated,
        tensor_core_macs=eligible,
        launches=_launches(node, entry, inputs),
    )


def _control(node: Node) -> Cost:
    """The cost of control flow: Loop and Scan run their body ``trips`` times, If its more expensive branch."""
    bodies = [graph_costs(body).total for body in node.bodies]
    if not bodies:
        return Cost()
    all_bodies = total(bodies)
    executed = (
        max(bodies, key=lambda c: (c.flops, c.bytes)) if node.op == "If" else all_bodies * node.integer("trips", 1)
    )
    return replace(executed, parameters=all_bodies.parameters, parameter_bytes=all_bodies.parameter_bytes)


def _bytes_read(
    node: Node, entry: Operator, inputs: list[Tensor], outputs: list[Tensor], laid_out: Mapping[str, Layout]
) -> int:
    """The bytes that a node reads: each distinct element of its inputs once, or only the part that it picks."""
    # CopyTo overwrites its first operand without reading it; an operand that occurs twice is read once
    distinct = {t.name: t for t in (inputs[1:] if node.op == "CopyTo" else inputs)}.values()
    sizes = [distinct_elements(t.shape, laid_out[t.name].strides) * DTYPE_BITS[t.dtype] // 8 for t in distinct]
    if entry.kind == "generator":
        return 0
    if node.op == "EmbeddingBag" and len(inputs) > 1:
        # a row for each index, although the result has only one for each bag
        width = inputs[0].shape[-1] if inputs[0].shape else 1
        return inputs[1].elements * width * DTYPE_BITS[inputs[0].dtype] // 8 + sum(sizes[1:])
    if entry.kind == "gather":
        # the rows that are picked, not the whole table; the indices in full
        return min(outputs[0].bytes, sizes[0]) + sum(sizes[1:])
    # a Pad or a Tile may write more than it reads; a Slice-like copy reads no more than it writes
    if entry.kind == "movement" and node.op not in ("Concat", "Col2Im"):
        return min(sum(sizes), outputs[0].bytes)
    # a mixture of experts reads only the weights of experts that a token reaches
    if node.op == "GroupedMatMul":
        return sizes[0] + int(sizes[1] * _reached_share(inputs[1].shape[0], _rows(inputs[0]))) + sum(sizes[2:])
    if node.op == "MoE":
        return sizes[0] + int(sum(sizes[1:]) * _active_share(node, inputs))
    return sum(sizes)


def _reached_share(experts: int, rows: int) -> float:
    """The expected share of experts that at least one of ``rows`` rows reaches, if all experts are equally likely.

    >>> _reached_share(8, 1), round(_reached_share(8, 64), 3)
    (0.125, 1.0)
    """
    return 1 - (1 - 1 / experts) ** rows if experts else 1.0


def _active_share(node: Node, inputs: list[Tensor]) -> float:
    """The largest possible share of a mixture's experts that at least one token reaches."""
    experts, per_token = mixture(node, list(inputs))
    return min(experts, _rows(inputs[0]) * per_token) / experts


def _rows(tensor: Tensor) -> int:
    return tensor.elements // tensor.shape[-1] if tensor.shape and tensor.shape[-1] else 0


def _launches(node: Node, entry: Operator, inputs: list[Tensor]) -> int:
    if entry.kind != "recurrent":
        return 1
    # ONNX names the direction, PyTorch counts; every step of every layer and direction starts a kernel
    directions = 2 if node.text("direction") == "bidirectional" else node.integer("directions", 1)
    return max(1, time_steps(node, inputs[0])) * node.integer("layers", 1) * directions


def _on_tensor_cores(node: Node, inputs: list[Tensor], output: Tensor, *, tf32: bool) -> bool:
    """Whether the MACs may run on tensor cores: by PyTorch's defaults TF32 for convolutions, not for products."""
    if node.op in ("Conv", "ConvTranspose", "FusedConv") and len(inputs) > 1:
        weight = inputs[1]
        if node.integer("group", 1) > 1 and len(weight.shape) > 1 and weight.shape[1] == 1:
            return False  # a depthwise convolution is no matrix product
        return output.dtype in TENSOR_CORE_DTYPES or output.dtype == "fp32"
    operands = inputs[:2] or [output]
    return all(t.dtype in TENSOR_CORE_DTYPES or (tf32 and t.dtype == "fp32") for t in operands)
