"""Cli: ``foretell compare``."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from foretell.cli import options
from foretell.rendering.terminal.numbers import ABSENT, number
from foretell.rendering.terminal.printable import printable
from foretell.rendering.terminal.progress import working

if TYPE_CHECKING:
    from foretell.workflows.compare import ModelComparison


def run(
    first: options.Model,
    second: Annotated[str, typer.Argument(metavar="OTHER", help="The model to compare with.", show_default=False)],
    device: Annotated[str, typer.Option("--device", "-d", help="A device; see: foretell devices")] = "h200",
    batch_size: options.BatchSize = 1,
    dtype: options.Dtype = "fp32",
    mode: options.Mode = "inference",
    part: Annotated[
        str | None, typer.Option("--slice", help="A part of the device: mps:30, sms:66.", show_default=False)
    ] = None,
    inputs: options.Inputs = None,
    trust: options.Trust = False,
    allow_unknown: options.AllowUnknown = False,
    no_cache: options.NoCache = False,
    as_json: options.Json = False,
) -> None:
    """Predict MODEL and OTHER on the same device, and show the ratio of OTHER to MODEL."""
    from foretell.workflows.compare import compare

    with working(f"Reading {first} and {second}"):
        comparison = compare(
            first,
            second,
            device=device,
            batch_size=batch_size,
            dtype=dtype,
            mode=mode,
            slice=part,
            input_shape=inputs,
            trust=trust,
            allow_unknown=allow_unknown,
            use_cache=not no_cache,
        )
    if as_json:
        typer.echo(json.dumps(comparison.to_dict(), indent=1))
        return
    _show(comparison, (first, second))


def _show(comparison: "ModelComparison", models: tuple[str, str]) -> None:
    from rich import box
    from rich.table import Table

    from foretell.rendering.terminal.prediction import console
    from foretell.workflows.compare import COMPARED, value_of

    predictions = one, other = comparison.first, comparison.second
    where = f"{one.device}{f' {one.slice}' if one.slice else ''} · {one.mode} · batch {one.batch_size} · {one.dtype}"
    table = Table(box=box.SIMPLE_HEAD, title=where, title_justify="left")
    table.add_column("")
    for model in models:
        table.add_column(printable(model), justify="right")
    table.add_column("times", justify="right")
    times = comparison.times

    for name in COMPARED:
        values = [value_of(prediction, name) for prediction in predictions]
        if any(value is not None for value in values):
            shown = (*values, times.get(name))
            table.add_row(name, *(ABSENT if value is None else number(value) for value in shown))
    console().print(table)
    for warning in dict.fromkeys(text for prediction in (one, other) for text in prediction.warnings):
        typer.echo(f"note: {printable(warning)}", err=True)
