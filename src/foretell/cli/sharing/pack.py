"""Cli: ``foretell pack``."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from foretell.cli import options
from foretell.errors import InputError
from foretell.files import write_whole
from foretell.rendering.terminal.printable import printable
from foretell.rendering.terminal.progress import working

if TYPE_CHECKING:
    from foretell.rendering.svg.gantt import Task
    from foretell.workflows.sharing.pack import Packing


@click.command()
@click.argument("jobs", type=options.PATH, metavar="JOBS.toml", help="Jobs: models or numbers, arrivals, limits.")
@click.option("--cluster", type=options.PATH, required=True, help="A TOML file of GPUs and how they are shared.")
@click.option(
    "--policy", default="slowdown", help="slowdown, exclusive, slots, utilisation, occupancy or oracle (measured)."
)
@click.option(
    "--order", default="arrival", help="Which job that waits goes first: arrival, or longest (an earlier end)."
)
@click.option("--kubernetes", type=options.PATH, metavar="FOLDER", help="Write manifests for Kubernetes.")
@click.option("--ray", type=options.OutputFile(), metavar="FILE", help="Write placement groups for Ray, as JSON.")
@click.option(
    "--report",
    type=options.OutputFile(".html", ".svg"),
    metavar="FILE",
    help="Write a page (.html) or a Gantt chart (.svg).",
)
@options.reading
@options.as_json
def run(
    jobs: Path,
    cluster: Path,
    policy: str,
    order: str,
    kubernetes: Path | None,
    ray: Path | None,
    report: Path | None,
    trust: bool,
    no_cache: bool,
    memory_limit_gib: float | None,
    timeout_s: float | None,
    as_json: bool,
) -> None:
    """Pack the jobs of JOBS.toml onto the GPUs of a cluster, and simulate the schedule."""
    from foretell.workflows.sharing.pack import pack

    with working(f"Packing {jobs}"):
        packing = pack(
            jobs,
            cluster=cluster,
            policy=policy,
            order=order,
            trust=trust,
            use_cache=not no_cache,
            memory_limit_gib=memory_limit_gib,
            timeout_s=timeout_s,
        )
        files, notes = _files(packing, kubernetes, ray, report)
    for path, text in files.items():
        try:
            write_whole(path, text.encode())
        except OSError as error:
            raise InputError(f"Cannot write {path}: {error.strerror}. Choose another place.") from error
    if as_json:
        click.echo(json.dumps(packing.to_dict(), indent=1, allow_nan=False))
    else:
        _show(packing)
        for path in files:
            click.echo(f"written: {printable(str(path))}")
    for note in (*packing.warnings, *notes):
        click.echo(f"note: {printable(note)}", err=True)


def _files(
    packing: "Packing", kubernetes: Path | None, ray: Path | None, report: Path | None
) -> tuple[Mapping[Path, str], list[str]]:
    """All texts to write; nothing is written until all of them are made."""
    files: dict[Path, str] = {}
    found: list[str] = []
    if kubernetes is not None:
        from foretell.rendering.manifests.kubernetes import kubernetes_files, notes

        files |= {kubernetes / name: text for name, text in kubernetes_files(packing.cluster, packing.runs).items()}
        found = notes(packing.cluster, packing.runs)
    if ray is not None:
        from foretell.rendering.manifests.ray import ray_placement

        files[ray] = ray_placement(packing.cluster, packing.runs)
    if report is not None:
        from foretell.rendering.html.packing_page import packing_page
        from foretell.rendering.svg.gantt import draw_gantt
        from foretell.workflows.sharing.pack import SUMS

        gantt = draw_gantt(*_tasks(packing), title="Which job runs where")
        sums = [*list(packing.lines())[:SUMS], *(("warning", warning) for warning in packing.warnings)]
        page = packing_page(packing.heading(), sums, gantt, packing.rows())
        files[report] = gantt if report.suffix == ".svg" else page
    return files, found


def _tasks(packing: "Packing") -> tuple[list[str], list["Task"]]:
    """The rows of a Gantt chart, one for each place that is used, and its bars."""
    from foretell.rendering.svg.gantt import Task, lay_lanes

    bars = [(place, run) for run in packing.runs for place in run.places]
    used = {place: row for row, place in enumerate(sorted({place for place, _ in bars}))}
    lanes = lay_lanes([(place, run.start_s, run.end_s) for place, run in bars])
    tasks = [
        Task(
            used[place], lane, run.start_s, run.end_s, run.job.name, run.job.profile.number,
            f", {run.slowdown:.3g} times as long as alone",
        )
        for (place, run), lane in zip(bars, lanes, strict=True)
    ]  # fmt: skip
    return [packing.place_name(place) for place in used], tasks


def _show(packing: "Packing") -> None:
    from foretell.rendering.terminal.gantt import text_gantt
    from foretell.workflows.sharing.pack import SUMS

    click.echo(packing.heading())
    lines = list(packing.lines())[:SUMS]
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        click.echo(f"  {name:<{width}}  {value}")
    rows, tasks = _tasks(packing)
    kinds = {run.job.profile.number: run.job.profile.name for run in packing.runs}
    names = [kinds.get(number, "") for number in range(max(kinds, default=-1) + 1)]
    for line in text_gantt(rows, tasks, names):
        click.echo(line)
