"""Cli: ``foretell roofline``."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from foretell.cli import options
from foretell.rendering.terminal.numbers import ABSENT, number
from foretell.rendering.terminal.printable import printable
from foretell.rendering.terminal.progress import working
from foretell.units import engineering, ms, seconds_from_us

if TYPE_CHECKING:
    from foretell.rendering.svg.roofline import Roofline


@click.command()
@options.model
@click.option("--device", "-d", default="h200", help="A device; see: foretell devices")
@options.batch_size
@options.inputs
@options.dtype
@options.mode
@click.option("slice_", "--slice", help="A part of the device: mps:30, mig:1g.18gb, sms:66.")
@click.option("--optimizer", help="sgd (momentum) or adamw, in training.")
@click.option("--predictor", "-p", help="A predictor's name [the best].")
@click.option("--by", default="operator", help="Group points by operator or by kernel.")
@click.option(
    "--out", "-o", type=options.OutputFile(".svg", ".png", ".html"), help="Draw it: FILE.svg, FILE.png or FILE.html."
)
@click.option("--dark", is_flag=True, help="A dark .png. Other formats follow the settings of the viewer.")
@click.option("--most", type=click.IntRange(min=1), default=12, help="Rows of the table.")
@options.context
@options.reading
@options.allow_unknown
@options.as_json
def run(
    model: str,
    device: str,
    batch_size: int,
    inputs: tuple[str, ...],
    dtype: str,
    mode: str,
    slice_: str | None,
    optimizer: str | None,
    predictor: str | None,
    by: str,
    out: Path | None,
    dark: bool,
    most: int,
    context: int | None,
    trust: bool,
    allow_unknown: bool,
    no_cache: bool,
    memory_limit_gib: float | None,
    timeout_s: float | None,
    as_json: bool,
) -> None:
    """Show how close the operators of MODEL come to the ceilings of a device, and what limits them."""
    from foretell.workflows.roofline import roofline, write_roofline

    with working(f"Reading {model}"):
        result = roofline(
            model,
            device=device,
            batch_size=batch_size,
            input_shape=list(inputs) or None,
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
            memory_limit_gib=memory_limit_gib,
            timeout_s=timeout_s,
        )
        if out is not None:
            write_roofline(result, out, dark=dark)
    if as_json:
        click.echo(json.dumps(result.to_dict(), indent=1))
        return
    _show(result, most)
    if out is not None:
        click.echo(printable(f"written: {out}"))


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
