"""Cli: ``foretell improve``."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from foretell.cli import options
from foretell.rendering.terminal.printable import printable
from foretell.rendering.terminal.progress import working

if TYPE_CHECKING:
    from foretell.advisors.improvement import Change, Improvement

_REJECTED = 8
_COSTS = {"none": "", "numerics": "check the accuracy", "retraining": "train again"}


@click.command()
@options.model
@click.option("--by", default="latency", help="What shall improve: latency, throughput, memory or usd.")
@click.option("--accuracy", default="retraining", help="The most that a change may cost: none, numerics or retraining.")
@click.option("--device", "-d", default="h200", help="Where it runs now; see: foretell devices")
@options.batch_size
@options.dtype
@options.mode
@click.option("--runtime", default="cuda-graph", help="What drives the device now: cuda-graph, eager or compiled.")
@click.option("part", "--slice", help="The part of the device that it has now: mps:30, mig:1g.18gb, sms:66.")
@click.option("--optimizer", help="sgd or adamw, in training.")
@options.channels_last
@click.option("--latency-limit-ms", type=float, help="The longest latency allowed; what takes longer is rejected.")
@click.option("--max-batch", type=click.IntRange(min=1), default=256, help="The largest batch size to try.")
@click.option("--devices", help="Other GPUs to try, separated by commas; none: no other [all that are rented out].")
@click.option("--region", help="The cloud region where it runs now.")
@click.option("--prices", type=options.PATH, help="A file of your own prices, in addition to those in the package.")
@click.option("--predictor", help="The name of a predictor, or a file of foretell train.")
@options.inputs
@options.context
@click.option("--apply-check", is_flag=True, help="Also show the whole prediction of the changed model.")
@options.reading
@options.allow_unknown
@options.as_json
def run(
    model: str,
    by: str,
    accuracy: str,
    device: str,
    batch_size: int,
    dtype: str,
    mode: str,
    runtime: str,
    part: str | None,
    optimizer: str | None,
    channels_last: bool,
    latency_limit_ms: float | None,
    max_batch: int,
    devices: str | None,
    region: str | None,
    prices: Path | None,
    predictor: str | None,
    inputs: tuple[str, ...],
    context: int | None,
    apply_check: bool,
    trust: bool,
    no_cache: bool,
    memory_limit_gib: float | None,
    timeout_s: float | None,
    allow_unknown: bool,
    as_json: bool,
) -> None:
    """Find what would make MODEL faster, smaller or cheaper: each change is made, predicted again, and ranked."""
    from foretell.workflows.improving.improve import improve

    others = None if devices is None else [name for name in options.words(devices) if name != "none"]
    asked: dict[str, Any] = {"by": by, "accuracy": accuracy}
    with working(f"Changing {model}"):
        answer = improve(
            model, **asked, device=device, batch_size=batch_size, dtype=dtype, mode=mode, runtime=runtime, slice=part,
            optimizer=optimizer, channels_last=channels_last, latency_limit_ms=latency_limit_ms, max_batch=max_batch,
            devices=others, region=region, prices=prices, predictor=predictor, input_shape=list(inputs) or None,
            context=context, trust=trust, allow_unknown=allow_unknown, use_cache=not no_cache,
            memory_limit_gib=memory_limit_gib, timeout_s=timeout_s,
        )  # fmt: skip
    changed = answer.together or (answer.changes[0] if answer.changes else None)
    if as_json:
        result = answer.to_dict()
        if apply_check and changed is not None:
            result["applied"] = {"change": changed.name} | changed.after.to_dict()
        click.echo(json.dumps(result, indent=1))
        return
    _show(answer, model)
    if apply_check and changed is not None:
        _show_applied(changed)


def _show(answer: "Improvement", model: str) -> None:
    from foretell.advisors.improvement import gain_text

    before, name = answer.before, printable(model)
    now = before.host_latency_ms if before.runtime == "eager" and before.host_latency_ms else before.latency_ms
    if not answer.changes:
        click.echo(f"{name}: no change that was tried helps {answer.objective}")
    else:
        best = answer.changes[0]
        click.echo(f"{name}: {printable(best.name)}, {gain_text(best.gains[answer.objective], answer.objective)}")
        if answer.together is not None:
            total = answer.together.gains[answer.objective]
            click.echo(f"together: {printable(answer.together.name)}: {gain_text(total, answer.objective)}")
    if now is not None:
        where = f"{before.device}{f' {before.slice}' if before.slice else ''}"
        click.echo(f"now: {now.value:.3g} ms on {where}, batch {before.batch_size}, {before.dtype}, {before.runtime}")
    if answer.changes:
        _table(answer)
    for change in answer.changes:
        cost = f" ({_COSTS[change.accuracy]})" if _COSTS[change.accuracy] else ""
        click.echo(f"{printable(change.name)}{cost}: {printable(change.how)}")
        if change.why:
            click.echo(f"   why: {printable(change.why)}.")
    for change in answer.rejected[:_REJECTED]:
        click.echo(f"rejected: {printable(change.name)}: {printable(change.reason)}")
    if len(answer.rejected) > _REJECTED:
        click.echo(f"and {len(answer.rejected) - _REJECTED} more rejected; --json has all")
    for note in (*answer.notes, *before.warnings):
        click.echo(f"note: {printable(note)}", err=True)


def _table(answer: "Improvement") -> None:
    from rich import box
    from rich.table import Table

    from foretell.rendering.terminal.numbers import cell
    from foretell.rendering.terminal.prediction import console

    table = Table(box=box.SIMPLE_HEAD)
    columns = ("change", "gain", "90 %", "ms a batch", "items/s", "peak MiB", "accuracy")
    for name in columns:
        table.add_column(name, justify="left" if name in ("change", "accuracy") else "right")

    def row(change: "Change") -> list[str]:
        gain, after = change.gains[answer.objective], change.after
        eager = after.runtime == "eager" and after.host_latency_ms is not None
        latency = after.host_latency_ms if eager else after.latency_ms
        sure = "" if change.is_sure(answer.objective) else " ?"
        return [
            change.name, f"{gain.value:.3g} ×{sure}", f"{gain.low:.3g} – {gain.high:.3g}", cell(latency),
            cell(after.throughput_per_s), cell(after.memory_mib), change.accuracy,
        ]  # fmt: skip

    for change in (*answer.changes, *([answer.together] if answer.together else [])):
        table.add_row(*map(printable, row(change)))
    console().print(table)
    if any(not change.is_sure(answer.objective) for change in answer.changes):
        click.echo("? the interval holds 1: it may not help")


def _show_applied(change: "Change") -> None:
    from foretell.rendering.terminal.prediction import show_prediction

    click.echo(f"with {printable(change.name)}:")
    show_prediction(change.after, change.name)
