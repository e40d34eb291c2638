"""Workflows: count what a model computes: parameters, MACs, FLOPs and bytes, by operator, by module and by node."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from foretell.errors import InputError
from foretell.graph import Cost, CostTable, Graph, Peak, graph_costs, inference_peak, training_peak, training_step
from foretell.graph.cost.training import find_optimizer
from foretell.readable import Readable
from foretell.units import engineering, size
from foretell.workflows.workload import InputShape, load_graph

GROUPINGS = ("operator", "module", "node")


@dataclass(frozen=True, repr=False)
class Inspection(Readable):
    """A model's graph and the cost of every node; with the mode training, also of a training step."""

    model: str
    graph: Graph
    costs: CostTable
    mode: str = "inference"
    optimizer: str = "sgd"

    @property
    def total(self) -> Cost:
        """The cost of one forward pass."""
        return self.costs.total

    @property
    def peak(self) -> Peak:
        """The peak memory: of a training step in the mode training, else of a forward pass."""
        return training_peak(self.graph, self.optimizer) if self.mode == "training" else inference_peak(self.graph)

    def heading(self) -> str:
        """The model, its number of nodes, its dtype and its batch size."""
        graph = self.graph
        return f"{self.model}: {len(graph.nodes)} nodes, {graph.dtype}, batch {graph.batch_size}"

    def lines(self) -> Iterator[tuple[str, str]]:
        """The totals, then the operators with the most arithmetic."""
        total = self.total
        yield "parameters", f"{total.parameters:,} ({size(total.parameter_bytes)})"
        yield "MACs", engineering(total.macs)
        yield "FLOPs", engineering(total.flops)
        yield "peak memory", size(self.peak.bytes)
        for operator, (count, cost) in list(self.costs.by_operator().items())[:6]:
            yield operator, f"{count} times, {engineering(cost.flops)} FLOPs, {size(cost.bytes)} moved"

    def rows(self, by: str = "operator", depth: int | None = None) -> list[dict[str, Any]]:
        """One row for each operator, module (down to a depth) or node."""
        if by not in GROUPINGS:
            raise InputError(f"Unknown grouping {by!r}. Choose from: {', '.join(GROUPINGS)}.")
        return [
            {"name": name, "operator": operator, "count": count, **asdict(cost)}
            for name, (operator, count, cost) in self.grouped(by, depth).items()
        ]

    def grouped(self, by: str, depth: int | None = None) -> dict[str, tuple[str, int, Cost]]:
        """The rows by name: operator, count and cost."""
        costs = self.costs
        if by == "operator":
            return {op: (op, count, cost) for op, (count, cost) in costs.by_operator().items()}
        if by == "module":
            return {path: ("", count, cost) for path, (count, cost) in costs.by_module(depth).items()}
        rows: dict[str, tuple[str, int, Cost]] = {}
        for position, (node, cost) in enumerate(zip(costs.graph.nodes, costs.nodes)):
            # ONNX does not require the names of nodes to be unique
            rows[node.name if node.name not in rows else f"{node.name} ({position})"] = (node.op, 1, cost)
        return rows

    def to_dict(self, by: str | None = None, depth: int = 2) -> dict[str, Any]:
        """The object that ``foretell inspect --json`` prints; ``by="node"`` adds the nodes."""
        graph, costs = self.graph, self.costs
        result: dict[str, Any] = {
            "model": self.model,
            "batch_size": graph.batch_size,
            "dtype": graph.dtype,
            "hash": graph.hash,
            "inputs": {name: list(graph.tensors[name].shape) for name in graph.inputs},
            "nodes": len(graph.nodes),
            **asdict(self.total),
            "memory_bytes": inference_peak(graph).bytes,
            "by_operator": {op: {"count": count, **asdict(cost)} for op, (count, cost) in costs.by_operator().items()},
            "by_module": {
                path: {"count": count, **asdict(cost)} for path, (count, cost) in costs.by_module(depth).items()
            },
            "unknown_operators": costs.unknown_operators,
            "coverage": costs.coverage,
            "warnings": list(graph.warnings),
        }
        if by == "node":
            result["by_node"] = [
                {"name": node.name, "operator": node.op, "module": node.module, **asdict(cost)}
                for node, cost in zip(graph.nodes, costs.nodes)
            ]
        if self.mode == "training":
            step = training_step(graph, self.optimizer)
            result["training"] = {
                "optimizer": self.optimizer,
                "forward": asdict(self.total),
                "backward": asdict(sum(step.backward, Cost())),
                "update": asdict(step.optimizer),
                "total": asdict(step.total),
                "memory_bytes": training_peak(graph, self.optimizer).bytes,
            }
        return result


def inspect(
    model: Any,
    *,
    batch_size: int = 1,
    input_shape: InputShape = None,
    dtype: str | None = None,
    mode: str = "inference",
    optimizer: str = "sgd",
    context: int | None = None,
    trust: bool = False,
    allow_unknown: bool = False,
    as_written: bool = False,
    use_cache: bool = True,
    memory_limit_gib: float | None = None,
    timeout_s: float | None = None,
) -> Inspection:
    """Count what a model computes; the arguments are those of `foretell.predict`.

    >>> from foretell.testing import tiny_onnx
    >>> inspection = inspect(tiny_onnx(), batch_size=2)
    >>> inspection.total.parameters, inspection.graph.batch_size
    (248, 2)
    """
    find_optimizer(optimizer)
    graph = load_graph(
        model, input_shape=input_shape, batch_size=batch_size, dtype=dtype, mode=mode, context=context, trust=trust,
        allow_unknown=allow_unknown, as_written=as_written, use_cache=use_cache,
        memory_limit_gib=memory_limit_gib, timeout_s=timeout_s,
    )  # fmt: skip
    name = model if isinstance(model, str) else graph.name
    return Inspection(name, graph, graph_costs(graph), mode, optimizer)
