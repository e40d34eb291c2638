"""Cli: ``foretell compare``."""

import json
from typing import TYPE_CHECKING

import click

from foretell.cli import options
from foretell.rendering.terminal.numbers import ABSENT, number
from foretell.rendering.terminal.printable import printable
from foretell.rendering.terminal.progress import working

if TYPE_CHECKING:
    from foretell.workflows.compare import ModelComparison


@click.command()
@click.argument("first", metavar="MODEL", help=options.MODELS)
@click.argument("second", metavar="OTHER", help="The model to compare with.")
@click.option("--device", "-d", default="h200", help="A device; see: foretell devices")
@options.batch_size
@options.dtype
@options.mode
@click.option("part", "--slice", help="A part of the device: mps:30, sms:66.")
@options.inputs
@options.reading
@options.allow_unknown
@options.as_json
def run(
    first: str,
    second: str,
    device: str,
    batch_size: int,
    dtype: str,
    mode: str,
    part: str | None,
    inputs: tuple[str, ...],
    trust: bool,
    allow_unknown: bool,
    no_cache: bool,
    memory_limit_gib: float | None,
    timeout_s: float | None,
    as_json: bool,
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
            input_shape=list(inputs) or None,
            trust=trust,
            allow_unknown=allow_unknown,
            use_cache=not no_cache,
            memory_limit_gib=memory_limit_gib,
            timeout_s=timeout_s,
        )
    if as_json:
        click.echo(json.dumps(comparison.to_dict(), indent=1))
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
        click.echo(f"note: {printable(warning)}", err=True)
