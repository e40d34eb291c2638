"""cli: ``foretell inspect``."""

import csv
import json
import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer

from foretell.cli import options
from foretell.errors import InputError
from foretell.graph import Cost, CostTable, Graph, graph_costs, inference_peak, training_peak, training_step
from foretell.graph.cost.training import find_optimizer
from foretell.rendering.terminal.printable import printable
from foretell.rendering.terminal.progress import working


def run(
    model: options.Model,
    batch_size: options.BatchSize = 1,
    inputs: options.Inputs = None,
    dtype: Annotated[
        str | None, typer.Option("--dtype", help="Cast the model first: fp16, bf16, …", show_default=False)
    ] = None,
    mode: options.Mode = "inference",
    optimizer: Annotated[str, typer.Option("--optimizer", help="sgd (momentum) or adamw, in training.")] = "sgd",
    by: Annotated[
        str | None,
        typer.Option(
            "--by", help="operator, module or node; a summary of the first two by default.", show_default=False
        ),
    ] = None,
    depth: Annotated[int, typer.Option("--depth", help="How deep the tree of modules goes.")] = 2,
    context: options.Context = None,
    trust: options.Trust = False,
    allow_unknown: options.AllowUnknown = False,
    no_cache: options.NoCache = False,
    as_json: options.Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the table as CSV.")] = False,
) -> None:
    """Show FLOPs, MACs, parameters and bytes of MODEL, by operator and by layer."""
    from foretell.workflows.workload import load_graph

    if by not in (None, "operator", "module", "node"):
        raise InputError(f"Unknown grouping --by {by}. Choose from: operator, module, node.")
    if as_json and as_csv:
        raise InputError("Choose one of --json and --csv.")
    find_optimizer(optimizer)
    if depth < 1:
        raise InputError(f"--depth is {depth}; it must be 1 or more.")
    with working(f"Reading {model}"):
        graph = load_graph(
            model,
            input_shape=inputs,
            batch_size=batch_size,
            dtype=dtype,
            mode=mode,
            context=context,
            trust=trust,
            allow_unknown=allow_unknown,
            use_cache=not no_cache,
        )
    costs = graph_costs(graph)
    if as_json:
        typer.echo(json.dumps(_as_dict(model, graph, costs, mode, optimizer, by, depth), indent=1))
    elif as_csv:
        _print_csv(_rows(costs, by or "operator", depth))
    else:
        _print(model, graph, costs, mode, optimizer, by, depth)


def _rows(costs: CostTable, by: str, depth: int | None) -> dict[str, tuple[str, int, Cost]]:
    """Rows of a table: name → (operator, count, cost)."""
    if by == "operator":
        return {op: (op, count, cost) for op, (count, cost) in costs.by_operator().items()}
    if by == "module":
        return {path: ("", count, cost) for path, (count, cost) in costs.by_module(depth).items()}
    rows: dict[str, tuple[str, int, Cost]] = {}
    for position, (node, cost) in enumerate(zip(costs.graph.nodes, costs.nodes)):
        rows[node.name if node.name not in rows else f"{node.name} ({position})"] = (node.op, 1, cost)
    return rows


def _as_dict(
    model: str, graph: Graph, costs: CostTable, mode: str, optimizer: str, by: str | None, depth: int
) -> dict[str, Any]:
    total = costs.total
    result: dict[str, Any] = {
        "model": model,
        "batch_size": graph.batch_size,
        "dtype": graph.dtype,
        "hash": graph.hash,
        "inputs": {name: list(graph.tensors[name].shape) for name in graph.inputs},
        "nodes": len(graph.nodes),
        **asdict(total),
        "memory_bytes": inference_peak(graph).bytes,
        "by_operator": {op: {"count": count, **asdict(cost)} for op, (count, cost) in costs.by_operator().items()},
        "by_module": {path: {"count": count, **asdict(cost)} for path, (count, cost) in costs.by_module(depth).items()},
        "unknown_operators": costs.unknown_operators,
        "coverage": costs.coverage,
        "warnings": list(graph.warnings),
    }
    if by == "node":
        result["by_node"] = [
            {"name": n.name, "operator": n.op, "module": n.module, **asdict(c)}
            for n, c in zip(graph.nodes, costs.nodes)
        ]
    if mode == "training":
        step = training_step(graph, optimizer)
        result["training"] = {
            "optimizer": optimizer,
            "forward": asdict(total),
            "backward": asdict(sum(step.backward, Cost())),
            "update": asdict(step.optimizer),
            "total": asdict(step.total),
            "memory_bytes": training_peak(graph, optimizer).bytes,
        }
    return result


def _print_csv(rows: dict[str, tuple[str, int, Cost]]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    header = list(asdict(Cost()))
    writer.writerow(["name", "operator", "count", *header])
    for name, (operator, count, cost) in rows.items():
        writer.writerow([name, operator, count, *asdict(cost).values()])


def _print(model: str, graph: Graph, costs: CostTable, mode: str, optimizer: str, by: str | None, depth: int) -> None:
    from foretell.rendering.terminal.prediction import console, cost_table, module_tree
    from foretell.units import engineering, size

    out = console()
    shapes = ", ".join(f"{name} {'×'.join(map(str, graph.tensors[name].shape))}" for name in graph.inputs[:4])
    if len(graph.inputs) > 4:
        shapes += f" and {len(graph.inputs) - 4} more"
    total = costs.total
    peak = training_peak(graph, optimizer) if mode == "training" else inference_peak(graph)
    out.print(
        printable(f"{model}: {len(graph.nodes)} nodes, {graph.dtype}, batch {graph.batch_size}; inputs {shapes}"),
        soft_wrap=True,
    )
    out.print(
        f"{total.parameters:,} parameters ({size(total.parameter_bytes)}) · {engineering(total.macs)} MACs · "
        f"{engineering(total.flops)} FLOPs · "
        f"peak memory {size(peak.bytes)}{' in training' if mode == 'training' else ''}",
        soft_wrap=True,
    )
    if mode == "training":
        step = training_step(graph, optimizer)
        out.print(
            f"a training step with {optimizer}: {engineering(step.total.macs)} MACs · "
            f"{engineering(step.total.flops)} FLOPs · {size(step.total.bytes)} moved"
        )
    if by in (None, "operator"):
        out.print(cost_table(costs.by_operator(), "operator", total))
    if by in (None, "module") and any(n.module for n in graph.nodes):
        out.print(module_tree(costs, model, depth))
    if by == "node":
        out.print(
            cost_table(
                {name: (count, cost) for name, (_, count, cost) in _rows(costs, "node", None).items()}, "node", total
            )
        )
    for name, share in costs.unknown_operators.items():
        out.print(
            printable(f"! unknown operator {name}: {share:.1%} of the bytes moved, no arithmetic counted"),
            style="yellow",
        )
    for warning in graph.warnings:
        out.print(printable(f"! {warning}"), style="yellow", soft_wrap=True)
