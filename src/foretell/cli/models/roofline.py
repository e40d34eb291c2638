"""Cli: ``foretell roofline``."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretell.cli import options
from foretell.rendering.terminal.numbers import ABSENT, number
from foretell.rendering.terminal.printable import printable
from foretell.rendering.terminal.progress import working
from foretell.units import engineering, ms, seconds_from_us

if TYPE_CHECKING:
    from foretell.rendering.svg.roofline import Roofline


def run(
    model: options.Model,
    device: Annotated[str, typer.Option("--device", "-d", help="A device; see: foretell devices")] = "h200",
    batch_size: options.BatchSize = 1,
    inputs: options.Inputs = None,
    dtype: options.Dtype = "fp32",
    mode: options.Mode = "inference",
    slice_: Annotated[
        str | None,
        typer.Option("--slice", help="A part of the device: mps:30, mig:1g.18gb, sms:66.", show_default=False),
    ] = None,
    optimizer: Annotated[
        str | None, typer.Option("--optimizer", help="sgd (momentum) or adamw, in training.", show_default=False)
    ] = None,
    predictor: Annotated[
        str | None, typer.Option("--predictor", "-p", help="A predictor's name [the best].", show_default=False)
    ] = None,
    by: Annotated[str, typer.Option("--by", help="Group points by operator or by kernel.")] = "operator",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Draw it: FILE.svg, FILE.png or FILE.html.", show_default=False),
    ] = None,
    dark: Annotated[
        bool, typer.Option("--dark", help="A dark .png. Other formats follow the settings of the viewer.")
    ] = False,
    most: Annotated[int, typer.Option("--most", min=1, help="Rows of the table.")] = 12,
    context: options.Context = None,
    trust: options.Trust = False,
    allow_unknown: options.AllowUnknown = False,
    no_cache: options.NoCache = False,
    as_json: options.Json = False,
) -> None:
    """Show how close the operators of MODEL come to the ceilings of a device, and what limits them."""
    from foretell.workflows.roofline import roofline, write_roofline

    with working(f"Reading {model}"):
        result = roofline(
            model,
            device=device,
            batch_size=batch_size,
            input_shape=inputs,
            dtype=dtype,
            mode=mode,
            slice=slice_,
            optimizer=optimizer,
            predictor=predictor,
            by=by,
            context=context,
            trust=trust,
            allow_unknown=allow_unknown,
            use_cache=not no_cache,
        )
        if out is not None:
            write_roofline(result, out, dark=dark)
    if as_json:
        typer.echo(json.dumps(result.to_dict(), indent=1))
        return
    _show(result, most)
    if out is not None:
        typer.echo(printable(f"written: {out}"))


def _show(result: "Roofline", most: int) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from foretell.rendering.svg.roofline import LIMITS
    from foretell.rendering.terminal.prediction import console

    out = console()
    out.print(Text(printable(f"{result.title}: {number(result.latency_ms)} ms ({result.predictor})"), style="bold"))
    for roof in result.roofs:
        rate = engineering(roof.per_s, "B/s" if roof.kind == "memory" else "FLOP/s")
        known = "measured" if roof.measured else "catalogue"
        out.print(Text(f"  {roof.name:<26} {rate:>14}  {known}{'' if roof.used else ', not used here'}"))
    table = Table(box=box.SIMPLE_HEAD)
    heads = ("", "count", "ms", "share", "FLOP/byte", "FLOP/s", "of ceiling", "limit")
    for head in (result.by, *heads[1:]):
        table.add_column(head, justify="left" if head in (result.by, "limit") else "right", overflow="fold")
    for group in result.groups[:most]:
        per_s = group.flops / seconds_from_us(group.time_us)
        table.add_row(
            printable(group.name),
            str(group.count),
            number(ms(seconds_from_us(group.time_us))),
            f"{group.share:.1%}",
            number(group.flops / group.bytes) if group.bytes else ABSENT,
            engineering(per_s),
            f"{group.reached:.0%}",
            group.limit,
        )
    rest = result.groups[most:]
    if rest:
        spent_ms = ms(seconds_from_us(sum(group.time_us for group in rest)))
        counted = (str(sum(group.count for group in rest)), number(spent_ms))
        table.add_row(f"{len(rest)} more", *counted, f"{sum(group.share for group in rest):.1%}", "", "", "", "")
    out.print(table)
    for limit, meaning in LIMITS.items():
        if any(group.limit == limit for group in result.groups[:most]):
            out.print(Text(f"{limit}: {meaning}", style="dim"))
    for note in result.notes:
        out.print(Text(printable(f"! {note}"), style="yellow"), soft_wrap=True)
