"""Cli: ``foretell inspect``."""

import csv
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from foretell.cli import options
from foretell.errors import InputError
from foretell.graph import Cost, training_step
from foretell.graph.cost.training import find_optimizer
from foretell.rendering.terminal.printable import printable
from foretell.rendering.terminal.progress import working

if TYPE_CHECKING:
    from foretell.workflows.inspect import Inspection


@click.command()
@options.model
@options.batch_size
@options.inputs
@click.option("--dtype", help="Cast the model first: fp16, bf16, …")
@options.mode
@click.option("--optimizer", default="sgd", help="sgd (momentum) or adamw, in training.")
@click.option("--by", help="operator, module or node [operator and module].")
@click.option("--depth", type=int, default=2, help="How deep the tree of modules goes.")
@options.context
@options.reading
@options.allow_unknown
@options.as_written
@options.as_json
@click.option("as_csv", "--csv", is_flag=True, help="Print the table as CSV.")
def run(
    model: str,
    batch_size: int,
    inputs: tuple[str, ...],
    dtype: str | None,
    mode: str,
    optimizer: str,
    by: str | None,
    depth: int,
    context: int | None,
    trust: bool,
    allow_unknown: bool,
    as_written: bool,
    no_cache: bool,
    memory_limit_gib: float | None,
    timeout_s: float | None,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Show FLOPs, MACs, parameters and bytes of MODEL, by operator and by layer."""
    from foretell.workflows.inspect import GROUPINGS, inspect

    if by is not None and by not in GROUPINGS:
        raise InputError(f"Unknown grouping --by {by}. Choose from: {', '.join(GROUPINGS)}.")
    if as_json and as_csv:
        raise InputError("Choose one of --json and --csv.")
    if depth < 1:
        raise InputError(f"--depth is {depth}; it must be 1 or more.")
    find_optimizer(optimizer)  # raises on an unknown name, before the model is read
    with working(f"Reading {model}"):
        inspection = inspect(
            model,
            input_shape=list(inputs) or None,
            batch_size=batch_size,
            dtype=dtype,
            mode=mode,
            optimizer=optimizer,
            context=context,
            trust=trust,
            allow_unknown=allow_unknown,
            as_written=as_written,
            use_cache=not no_cache,
            memory_limit_gib=memory_limit_gib,
            timeout_s=timeout_s,
        )
    if as_json:
        click.echo(json.dumps(inspection.to_dict(by, depth), indent=1))
    elif as_csv:
        _print_csv(inspection.rows(by or "operator", depth))
    else:
        _print(inspection, by, depth)


def _print_csv(rows: list[dict[str, Any]]) -> None:
    writer = csv.DictWriter(sys.stdout, ["name", "operator", "count", *asdict(Cost())], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _print(inspection: "Inspection", by: str | None, depth: int) -> None:
    from foretell.rendering.terminal.prediction import console, cost_table, module_tree
    from foretell.units import engineering, size

    out, graph, costs, total = console(), inspection.graph, inspection.costs, inspection.total
    shapes = ", ".join(f"{name} {'×'.join(map(str, graph.tensors[name].shape))}" for name in graph.inputs[:4])
    if len(graph.inputs) > 4:
        shapes += f" and {len(graph.inputs) - 4} more"
    out.print(
        printable(f"{inspection.heading()}; inputs {shapes}"),
        soft_wrap=True,
    )
    out.print(
        f"{total.parameters:,} parameters ({size(total.parameter_bytes)}) · {engineering(total.macs)} MACs · "
        f"{engineering(total.flops)} FLOPs · "
        f"peak memory {size(inspection.peak.bytes)}{' in training' if inspection.mode == 'training' else ''}",
        soft_wrap=True,
    )
    if inspection.mode == "training":
        step = training_step(graph, inspection.optimizer)
        out.print(
            f"a training step with {inspection.optimizer}: {engineering(step.total.macs)} MACs · "
            f"{engineering(step.total.flops)} FLOPs · {size(step.total.bytes)} moved"
        )
    if by in (None, "operator"):
        out.print(cost_table(costs.by_operator(), "operator", total))
    if by in (None, "module") and any(node.module for node in graph.nodes):
        out.print(module_tree(costs, inspection.model, depth))
    if by == "node":
        out.print(
            cost_table(
                {name: (count, cost) for name, (_, count, cost) in inspection.grouped("node").items()}, "node", total
            )
        )
    for name, share in costs.unknown_operators.items():
        out.print(
            printable(f"! unknown operator {name}: {share:.1%} of the bytes moved, no arithmetic counted"),
            style="yellow",
        )
    for warning in graph.warnings:
        out.print(printable(f"! {warning}"), style="yellow", soft_wrap=True)
