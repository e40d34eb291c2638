"""Cli: ``foretell share``."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from foretell.cli import options
from foretell.errors import InputError
from foretell.files import write_whole
from foretell.rendering.terminal.numbers import ABSENT, number
from foretell.rendering.terminal.printable import printable
from foretell.rendering.terminal.progress import working

if TYPE_CHECKING:
    from foretell.workflows.sharing.share import SharedJob, Sharing


@click.command()
@click.argument("models", metavar="MODEL MODEL [MODEL]", nargs=-1, required=True, help=options.MODELS)
@click.option("--device", "-d", default="h200", help="A GPU, or cpu; see: foretell devices")
@click.option("--method", help="mps or time-slicing; cores on a CPU [mps on a GPU, cores on a CPU].")
@click.option("--batch-sizes", "-b", default="1", metavar="N,N…", help="Items in a batch; one value serves all models.")
@click.option("--dtypes", default="fp32", metavar="DTYPE,DTYPE…", help="fp32, tf32, fp16, bf16, …; one serves all.")
@click.option("--modes", default="inference", metavar="MODE,MODE…", help="inference, training, prefill or decode.")
@click.option("--limits-ms", metavar="MS,MS…", help="The longest latency that each model may have.")
@click.option(
    "--measured-ms", metavar="MS,MS…", help="The latency of each alone, where you measured it: 3.1,- (not the second)."
)
@click.option(
    "--percentages", metavar="P,P…", help="CUDA_MPS_ACTIVE_THREAD_PERCENTAGE of each model, under MPS: 30,70."
)
@click.option(
    "inputs", "--input", "-i", multiple=True, metavar="SHAPE", help="Shape of the input of all models; repeat for each."
)
@click.option("--optimizer", help="sgd (momentum) or adamw, in training.")
@click.option(
    "--report",
    type=options.OutputFile(".html", ".svg"),
    metavar="FILE",
    help="Write a page (.html) or its chart (.svg).",
)
@options.context
@options.reading
@options.allow_unknown
@options.as_json
def run(
    models: tuple[str, ...],
    device: str,
    method: str | None,
    batch_sizes: str,
    dtypes: str,
    modes: str,
    limits_ms: str | None,
    measured_ms: str | None,
    percentages: str | None,
    inputs: tuple[str, ...],
    optimizer: str | None,
    report: Path | None,
    context: int | None,
    trust: bool,
    allow_unknown: bool,
    no_cache: bool,
    memory_limit_gib: float | None,
    timeout_s: float | None,
    as_json: bool,
) -> None:
    """Predict how two or three models slow each other down on one device. One value of an option serves all of them."""
    from foretell.workflows.sharing.share import share

    sizes = [int(size) for size in _numbers(batch_sizes, "batch size", whole=True)]
    limits = None if limits_ms is None else _numbers(limits_ms, "limit")
    parts = None if percentages is None else _numbers(percentages, "percentage")
    with working(f"Reading {', '.join(models)}"):
        sharing = share(
            models,
            device=device,
            method=method,
            batch_sizes=sizes,
            dtypes=options.words(dtypes),
            modes=options.words(modes),
            limits_ms=limits,
            measured_ms=None if measured_ms is None else [_measured(word) for word in options.words(measured_ms)],
            percentages=parts,
            input_shapes=list(inputs) if len(inputs) > 1 else (inputs[0] if inputs else None),
            optimizer=optimizer,
            context=context,
            trust=trust,
            allow_unknown=allow_unknown,
            use_cache=not no_cache,
            memory_limit_gib=memory_limit_gib,
            timeout_s=timeout_s,
        )
    if report is not None:
        _write(sharing, report)
    if as_json:
        click.echo(json.dumps(sharing.to_dict(), indent=1, allow_nan=False))
        return
    _show(sharing)
    if report is not None:
        click.echo(f"written: {printable(str(report))}")


def _measured(word: str) -> float | None:
    """A measured latency, or none."""
    return None if word == "-" else _numbers(word, "measured latency")[0]


def _numbers(text: str, what: str, *, whole: bool = False) -> list[float]:
    """The numbers of a list with commas."""
    numbers: list[float] = []
    for word in options.words(text):
        try:
            numbers.append(int(word) if whole else float(word))
        except ValueError as error:
            raise InputError(f"The {what} {word!r} is no {'whole ' if whole else ''}number.") from error
    if not numbers:
        raise InputError(f"Got no {what}: {text!r}. Give one for all models, or one for each.")
    return numbers


def _write(sharing: "Sharing", report: Path) -> None:
    from foretell.rendering.html.sharing_page import SharedRow, sharing_chart, sharing_page

    rows = []
    for job in sharing.jobs:
        part = f", {job.percentage:g} % of the SMs" if job.percentage is not None else ""
        setting = f"{job.mode}, batch {job.batch_size}, {job.dtype}{part}"
        rows.append(SharedRow(job.model, setting, job.alone_ms, job.together_ms, job.slowdown, _limit(job, " ms")))
    names = {"memory_mib": "memory, MiB", "throughput_gain": "times one after the other"}
    sums = [(names.get(name, name), text) for name, text in list(sharing.lines())[len(sharing.jobs) :]]
    is_page = report.suffix == ".html"
    text = sharing_page(sharing.heading(), rows, sums) if is_page else sharing_chart(sharing.heading(), rows)
    try:
        write_whole(report, text.encode())
    except OSError as error:
        raise InputError(f"Cannot write {report}: {error.strerror}. Choose another --report.") from error


def _limit(job: "SharedJob", unit: str = "") -> str:
    word = {True: "kept", False: "broken", None: ""}[job.keeps_limit]
    return "" if job.limit_ms is None else f"{job.limit_ms:g}{unit} {word}".strip()


def _show(sharing: "Sharing") -> None:
    from rich import box
    from rich.table import Table

    from foretell.readable import spell
    from foretell.rendering.terminal.prediction import console

    table = Table(box=box.SIMPLE_HEAD, title=f"{sharing.device} · {sharing.method}", title_justify="left")
    table.add_column("model")
    for name in ("batch", "dtype", "alone ms", "together ms", "slowdown"):
        table.add_column(name, justify="right")
    has_limits = any(job.limit_ms is not None for job in sharing.jobs)
    if has_limits:
        table.add_column("limit ms", justify="right")
    for job in sharing.jobs:
        part = f" ({job.percentage:g} % of the SMs)" if job.percentage is not None else ""
        cells = [printable(job.model) + part, str(job.batch_size), job.dtype, number(job.alone_ms.value)]
        cells += [ABSENT if estimate is None else spell(estimate) for estimate in (job.together_ms, job.slowdown)]
        if has_limits:
            cells.append(_limit(job) or ABSENT)
        table.add_row(*cells)
    console().print(table)
    if sharing.memory_mib is not None:
        click.echo(
            f"  memory           {spell(sharing.memory_mib)} MiB{'' if sharing.fits else ', which does not fit'}"
        )
    if sharing.throughput_gain is not None:
        click.echo(f"  throughput gain  {spell(sharing.throughput_gain)} times one after the other")
    for warning in sharing.warnings:
        click.echo(f"note: {printable(warning)}", err=True)
