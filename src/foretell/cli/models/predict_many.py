"""Cli: ``foretell predict-many``."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from foretell.cli import options
from foretell.cli.collect import INTERRUPTED, clock
from foretell.rendering.terminal.printable import printable

if TYPE_CHECKING:
    from foretell.workflows.many.predict_plan import PlannedPredictions, PlanProgress

_LINE_EVERY_S = 20.0


@click.command()
@click.argument("plan", type=options.PATH, metavar="PLAN", help="A TOML file: which models, and how they run.")
@click.option("--out", "-o", type=options.PATH, required=True, help="The folder of the Parquet files.")
@click.option("--ray", metavar="auto|ADDRESS|local", help="Predict on a Ray cluster.")
@click.option("--workers", type=int, help="Processes on this machine [one a core].")
@click.option("--check", is_flag=True, help="Only check the plan, and say how much it asks for.")
@click.option("--trust", is_flag=True, help="Allow the function of a space, and code that comes with models, to run.")
@options.as_json
def run(plan: Path, out: Path, ray: str | None, workers: int | None, check: bool, trust: bool, as_json: bool) -> None:
    """Predict all models of PLAN into Parquet files. After an interruption, the same command continues."""
    from foretell.workflows.many.plan import check_many_plan
    from foretell.workflows.many.predict_plan import predict_plan

    checked, mistakes = check_many_plan(plan)
    if checked is None:
        for mistake in mistakes:
            click.echo(f"foretell: {printable(' '.join(mistake.split()))}", err=True)
        raise click.exceptions.Exit(2)
    asked = checked.models * len(checked.combinations)
    if check:
        facts = {"models": checked.models, "predictions": asked, "shards": checked.shards}
        text = f"{checked.models:,} models, {asked:,} predictions, {checked.shards:,} shards"
        click.echo(json.dumps(facts) if as_json else text)
        return
    with _progress(plan.name) as show:
        done = predict_plan(plan, out=out, ray=ray, workers=workers, trust=trust, on_progress=show)
    click.echo(json.dumps(done.to_dict(), indent=1) if as_json else summary(done))
    if done.interrupted:
        click.echo("foretell: stopped. The same command continues from here.", err=True)
        raise click.exceptions.Exit(INTERRUPTED)
    # Single failures are rows of the answer; only a plan without any success is an error.
    if done.predictions and done.errors == done.predictions:
        click.echo(f"foretell: nothing could be predicted: see the column error in {printable(str(out))}", err=True)
        raise click.exceptions.Exit(2)


def summary(done: "PlannedPredictions") -> str:
    """What was done, in a line or two."""
    new = done.predictions - done.known_before
    text = f"{done.predictions:,} predictions in {done.shards:,} shards of {printable(str(done.out))}"
    text += f", {done.errors:,} of them errors" if done.errors else ""
    if not new:
        return f"{text}; nothing was left to do"
    each = done.rate / done.workers
    text += f"\n{new:,} in {clock(done.seconds)} by {done.workers} workers: {done.rate:,.1f} a second"
    text += f", {each:,.1f} a worker" if done.workers > 1 else ""
    if done.lost:
        text += f"\n{done.lost} workers died or were too slow; their tasks were given out again"
    return text


@contextmanager
def _progress(name: str) -> Iterator[Callable[["PlanProgress"], None]]:
    """A bar on a terminal, a line every 20 seconds elsewhere."""
    if not sys.stderr.isatty():
        last = time.monotonic()

        def line(state: "PlanProgress") -> None:
            nonlocal last
            if time.monotonic() - last >= _LINE_EVERY_S:
                last = time.monotonic()
                click.echo(f"foretell: {describe(state)}", err=True)

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[state]}"))
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(printable(name), total=None, state="starting")
        yield lambda state: bar.update(task, total=state.total, completed=state.done, state=describe(state))


def describe(state: "PlanProgress") -> str:
    """The progress of a plan in one line."""
    parts = [f"{state.done:,}/{state.total:,} predicted"]
    parts += [f"{state.errors:,} errors"] if state.errors else []
    parts += [f"{state.rate:,.0f} a second"] if state.rate else []
    parts += [f"{clock(state.left_s)} left"] if state.left_s is not None else []
    return " · ".join(parts)
