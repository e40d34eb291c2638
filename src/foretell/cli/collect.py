"""Cli: ``foretell collect``."""

import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from foretell.cli import options
from foretell.rendering.terminal.printable import printable

INTERRUPTED = 130  # the exit code of shells for a process that Ctrl-C ended


@click.command()
@click.argument("plan", type=options.PATH, metavar="PLAN", help="A TOML file: what to measure.")
@click.option("--out", type=options.PATH, help="Folder of the journal and the tables [campaigns/PLAN].")
@click.option("--store", help="Append to a folder of Parquet files, or postgresql://…")
@click.option("--seconds", type=float, help="Stop and write everything after so many seconds [the plan's].")
@click.option("--device", "-d", default="cuda", help="cuda or cpu.")
@click.option(
    "--skip",
    type=options.PATH,
    multiple=True,
    help="A folder or Parquet file of measurements that are done. Repeat for several.",
)
@click.option("--workers", type=(int, int), metavar="MEASURE TRACE", help="Numbers of processes [the plan's].")
@click.option(
    "--limit",
    type=int,
    default=0,
    help="Stop after so many measurements, once the models in progress are finished; 0: never.",
)
@click.option("--again", type=int, default=0, help="Measure so many of the skipped workloads once more.")
@click.option("--unsure", metavar="DEVICE", help="Measure first what its predictor is least sure of.")
@click.option("--ray", metavar="ADDRESS|local", help="Measure on a Ray cluster.")
@click.option("--commit", default="", help="The code's commit, for the records.")
@options.as_json
def run(
    plan: Path,
    out: Path | None,
    store: str | None,
    seconds: float | None,
    device: str,
    skip: tuple[Path, ...],
    workers: tuple[int, int] | None,
    limit: int,
    again: int,
    unsure: str | None,
    ray: str | None,
    commit: str,
    as_json: bool,
) -> None:
    """Measure what PLAN asks for. After an interruption, the same command continues where it ended."""
    from foretell.workflows.measure.collect import collect

    with progress_of(plan.name) as show:
        done = collect(
            plan,
            out=out,
            store=store,
            seconds=seconds,
            device=device,
            skip=skip,
            workers=workers,
            limit=limit,
            again=again,
            unsure=unsure,
            ray=ray,
            commit=commit,
            on_progress=show,
        )
    if as_json:
        click.echo(json.dumps(done.to_dict(), indent=1))
    else:
        click.echo(f"{_listed(done.rows) or 'nothing'} in {printable(str(done.out))}")
        if store is not None:
            new = _listed({table: rows for table, rows in done.appended.items() if rows}) or "nothing"
            click.echo(f"new in the store: {new}")
    if done.interrupted:
        click.echo("foretell: stopped. The same command continues from here.", err=True)
        raise click.exceptions.Exit(INTERRUPTED)
    # Single failures are normal in a campaign; only one without any success is an error.
    if done.counts and not any(done.counts.get(status) for status in ("ok", "traced")):
        endings = _listed(done.counts)
        click.echo(f"foretell: nothing could be measured ({endings}): see {printable(str(done.out))}", err=True)
        raise click.exceptions.Exit(2)


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name.removesuffix('s') if count == 1 else name}" for name, count in counts.items())


@contextmanager
def progress_of(name: str) -> Iterator[Callable[[Any], None]]:
    """Show progress: a bar with the time left on a terminal, elsewhere a log line every 20 seconds."""
    logger = logging.getLogger("foretell")
    if not sys.stderr.isatty():
        handler: logging.Handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(message)s"))
        # The logger is restored in the end: tests run several commands in one process.
        level = logger.level
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        try:
            yield lambda _: None
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)
        return
    from rich.console import Console
    from rich.logging import RichHandler
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True)
    # No markup: names of models may contain square brackets.
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[state]}", markup=False),
    )
    handler = RichHandler(level=logging.WARNING, console=console, show_path=False, show_time=False)
    logger.addHandler(handler)
    try:
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(printable(name), total=None, state="starting")

            def show(state: Any) -> None:
                # A campaign that does not know how many models come shows its share of the time budget instead.
                total = state.total if state.total is not None else state.budget_s
                done = state.finished if state.total is not None else state.elapsed_s
                bar.update(task, total=total, completed=done, state=describe(state))

            yield show
    finally:
        logger.removeHandler(handler)


def describe(state: Any) -> str:
    """Describe the progress of a campaign in one line."""
    from foretell.workflows.measure.collect import NO_LIMIT_S

    of = f"/{state.total:,}" if state.total is not None else ""
    parts = [f"{state.finished:,}{of} measured"]
    parts += [f"{state.failed:,} failed"] if state.failed else []
    parts += [f"{state.traced:,} traced"] if state.traced else []
    # Without a budget, the time left is only known after the first measurements.
    has_estimate = state.budget_s < NO_LIMIT_S or (state.finished and state.left is not None)
    return " · ".join((*parts, f"{clock(state.left_s)} left") if has_estimate else parts)


def clock(seconds: float) -> str:
    """Write a duration in its two largest units.

    >>> clock(42), clock(125), clock(7322), clock(200000)
    ('42 s', '2 min 5 s', '2 h 2 min', '2 days 7 h')
    """
    rounded = round(seconds)
    for unit, name, small, smaller in ((86400, "days", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if rounded >= unit:
            return f"{rounded // unit} {name} {rounded % unit // small} {smaller}"
    return f"{rounded} s"
