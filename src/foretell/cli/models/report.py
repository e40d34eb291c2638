"""Cli: ``foretell report``."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from foretell.cli import options
from foretell.errors import InputError
from foretell.files import write_whole
from foretell.rendering.terminal.printable import printable
from foretell.rendering.terminal.progress import working
from foretell.units import size


def run(
    model: options.Model,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("report.html"),
    device: Annotated[
        str, typer.Option("--device", "-d", help="The device that most of the report is about.")
    ] = "h200",
    batch_size: options.BatchSize = 1,
    inputs: options.Inputs = None,
    dtype: options.Dtype = "fp32",
    mode: options.Mode = "inference",
    optimizer: Annotated[
        str | None, typer.Option("--optimizer", help="sgd (momentum) or adamw, in training.", show_default=False)
    ] = None,
    context: options.Context = None,
    devices: Annotated[
        str,
        typer.Option(
            "--devices",
            help="Devices to compare and to advise on, separated by commas, or all [a few to compare, all for advice].",
            show_default=False,
        ),
    ] = "",
    slo_ms: Annotated[
        float | None, typer.Option("--slo-ms", help="The longest latency allowed.", show_default=False)
    ] = None,
    rate: Annotated[float | None, typer.Option("--rate", help="Requests a second.", show_default=False)] = None,
    budget: Annotated[
        float | None, typer.Option("--budget", help="Dollars an hour for all instances.", show_default=False)
    ] = None,
    max_batch: Annotated[
        int | None, typer.Option("--max-batch", help="The largest batch size [256].", show_default=False)
    ] = None,
    clouds: Annotated[str, typer.Option("--clouds", help="Names separated by commas [all].", show_default=False)] = "",
    region: Annotated[str | None, typer.Option("--region", help="A cloud's region.", show_default=False)] = None,
    country: Annotated[
        str | None,
        typer.Option("--country", help="Use the power grid of this country [the region's].", show_default=False),
    ] = None,
    pue: Annotated[
        float | None,
        typer.Option("--pue", help="Energy of the data centre over that of the devices [1].", show_default=False),
    ] = None,
    market: Annotated[str, typer.Option("--market", help="on-demand or spot.")] = "on-demand",
    prices: Annotated[
        Path | None,
        typer.Option(
            "--prices", help="A file of your own prices, in addition to those in the package.", show_default=False
        ),
    ] = None,
    trust: options.Trust = False,
    allow_unknown: options.AllowUnknown = False,
    no_cache: options.NoCache = False,
) -> None:
    """Write all predictions for MODEL into one HTML page that needs no network."""
    from foretell.advisors.placement import Requirements
    from foretell.rendering.html.report import report_page
    from foretell.workflows.advise import Renting
    from foretell.workflows.report import gather

    with _show_progress(f"Writing a report of {model}") as on_part:
        report = gather(
            model,
            device=device,
            batch_size=batch_size,
            input_shape=inputs,
            dtype=dtype,
            mode=mode,
            optimizer=optimizer,
            context=context,
            devices=options.words(devices) or None,
            requirements=Requirements(slo_ms, rate, budget, max_batch),
            renting=Renting(options.words(clouds), region, country, market, pue, prices),  # type: ignore[arg-type]
            trust=trust,
            allow_unknown=allow_unknown,
            use_cache=not no_cache,
            on_part=on_part,
        )
        page = report_page(report).encode()
    try:
        write_whole(out, page)
    except OSError as error:
        raise InputError(f"Cannot write {out}: {error.strerror}. Choose another --out.") from error
    typer.echo(f"written: {printable(str(out))} ({size(len(page))})")
    for part, why in report.missing.items():
        typer.echo(f"note: the report lacks {part}: {printable(why)}", err=True)


@contextmanager
def _show_progress(what: str) -> Iterator[Callable[[str], None]]:
    """Show progress: a spinner with the current part on a terminal, elsewhere one line if it takes long."""
    if not sys.stderr.isatty():
        with working(what):
            yield lambda _: None
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(printable(f"{what} …")), spinner="dots") as status:
        yield lambda part: status.update(Text(printable(f"{part} …")))
