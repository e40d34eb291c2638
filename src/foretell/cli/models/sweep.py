"""Cli: ``foretell sweep``."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from foretell.cli import options
from foretell.errors import InputError
from foretell.rendering.terminal.numbers import cell
from foretell.rendering.terminal.printable import printable
from foretell.rendering.terminal.progress import working

if TYPE_CHECKING:
    from foretell.workflows.sweep import Point

WHOLE_DEVICE = "whole"
_UNCALIBRATED = "uncalibrated: "
_MANY = 5  # more notes than these are told in one


@click.command()
@options.model
@click.option("--devices", "-d", default="h200", help="Names separated by commas, or all.")
@click.option("--batch-sizes", "-b", default="1,2,4,8,16,32,64", help="Numbers separated by commas.")
@click.option("--dtypes", default="fp32", help="fp32,fp16,bf16, …")
@click.option(
    "--slices", default=WHOLE_DEVICE, help="Parts of each device, separated by commas: mps:30,sms:66; whole: all of it."
)
@options.mode
@click.option("--optimizer", help="sgd or adamw.")
@options.inputs
@options.context
@click.option("--predictor", "-p", help="A predictor's name [the best].")
@click.option(
    "--out", "-o", type=options.OutputFile(".csv", ".parquet"), help="Write a table: FILE.csv or FILE.parquet."
)
@options.reading
@options.allow_unknown
@options.as_json
def run(
    model: str,
    devices: str,
    batch_sizes: str,
    dtypes: str,
    slices: str,
    mode: str,
    optimizer: str | None,
    inputs: tuple[str, ...],
    context: int | None,
    predictor: str | None,
    out: Path | None,
    trust: bool,
    allow_unknown: bool,
    no_cache: bool,
    memory_limit_gib: float | None,
    timeout_s: float | None,
    as_json: bool,
) -> None:
    """Predict MODEL over batch sizes, precisions, devices and slices."""
    from foretell.workflows.sweep import sweep, write_points

    with working(f"Sweeping {model}"):
        points = list(
            sweep(
                model,
                devices=options.words(devices),
                batch_sizes=_numbers(batch_sizes),
                dtypes=options.words(dtypes),
                slices=[None if part == WHOLE_DEVICE else part for part in options.words(slices)],
                mode=mode,
                optimizer=optimizer,
                input_shape=list(inputs) or None,
                context=context,
                predictor=predictor,
                trust=trust,
                allow_unknown=allow_unknown,
                use_cache=not no_cache,
                memory_limit_gib=memory_limit_gib,
                timeout_s=timeout_s,
            )
        )
    if out is not None:
        write_points(points, out)
    if as_json:
        click.echo(json.dumps({"points": [point.to_row() for point in points]}, indent=1))
        return
    _show(points, model)
    if out is not None:
        click.echo(f"written: {printable(str(out))}")


def _numbers(text: str) -> list[int]:
    try:
        return [int(word) for word in options.words(text)]
    except ValueError as error:
        raise InputError(f"Got the batch sizes {text!r}; give numbers separated by commas, such as 1,8,64.") from error


def _show(points: "list[Point]", model: str) -> None:
    from rich import box
    from rich.table import Table

    from foretell.advisors.batch import saturations
    from foretell.rendering.terminal.prediction import console
    from foretell.workflows.sweep import FIT_NOTES

    table = Table(box=box.SIMPLE_HEAD, title=printable(model), title_justify="left")
    # A single device needs no column.
    several = len({(point.prediction.device, point.prediction.slice) for point in points}) > 1
    for head in ("device", "dtype") if several else ("dtype",):
        table.add_column(head)
    # Occupancy is predicted for a few devices only.
    has_occupancy = any(point.prediction.occupancy is not None for point in points)
    for head in ("batch", "ms", "items/s", "MiB", "J an item", "W", *(("occupancy %",) if has_occupancy else ())):
        table.add_column(head, justify="right")
    table.add_column("")
    for point in points:
        prediction = point.prediction
        place = [f"{prediction.device} {prediction.slice or ''}".strip()] if several else []
        table.add_row(
            *place,
            prediction.dtype,
            str(prediction.batch_size),
            cell(prediction.latency_ms),
            cell(prediction.throughput_per_s),
            cell(prediction.device_memory_mib or prediction.memory_mib),
            cell(prediction.energy_j, prediction.batch_size),
            cell(prediction.power_w),
            *((cell(prediction.occupancy),) if has_occupancy else ()),
            FIT_NOTES.get(prediction.fits or "yes", ""),
        )
    console().print(table)
    for found in saturations(point.prediction for point in points):
        click.echo(found.sentence)
    warnings = dict.fromkeys(text for point in points for text in point.prediction.warnings)
    unmeasured = [text for text in warnings if text.startswith(_UNCALIBRATED)]
    if len(unmeasured) > _MANY:
        said = f"{_UNCALIBRATED}no measurement of {len(unmeasured)} of these devices went into their answers; "
        warnings = {said + "foretell predict --device NAME says what one rests on": None} | {
            text: None for text in warnings if text not in unmeasured
        }
    for warning in warnings:
        click.echo(f"note: {printable(warning)}", err=True)
