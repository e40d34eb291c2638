"""Cli: ``foretell train`` and ``foretell evaluate``: fit predictors to measurements, and judge them."""

import importlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from foretell.cli import options
from foretell.errors import InputError
from foretell.rendering.terminal.printable import printable

# Models that do not predict whole workloads have their own modules to fit and judge them, imported only when named.
MODELS = {
    "partitioner": "foretell.training.fusion",
    "slices": "foretell.training.slices",
    "kernel-classes": "foretell.training.kernel_classes",
    "compiled": "foretell.training.compiled",
    "occupancy": "foretell.training.occupancy",
    "sharing": "foretell.training.sharing",
    "core-sharing": "foretell.training.core_sharing",
    "cpu-runs": "foretell.training.cpu.runs",
}
_WHOLE = ("unit-network", "unit-trees")


@click.command()
@options.store_folder
@options.fitted_device
@click.option("--out", type=options.PATH, default=Path("out/trained"), help="Folder of the fitted predictor.")
@options.cache
@click.option("--seed", type=int, default=0, help="The random seed.")
@click.option("--threads", type=click.IntRange(min=1), default=1, help="Threads for fitting trees.")
@click.option(
    "--predictor",
    "-p",
    default="unit-network",
    help=f"{', '.join((*_WHOLE, *MODELS))}.",
)
@options.only_networks
def train(
    store: Path, device: str, out: Path, cache: Path, seed: int, threads: int, predictor: str, only_networks: bool
) -> None:
    """Fit a predictor to all measurements of a device. Networks are fitted on a GPU if there is one."""
    if predictor in MODELS:
        file = _module(predictor).train(store, device, cache, out, log=_log)
        click.echo(f"written: {printable(str(file))}")
        return
    if predictor not in _WHOLE:
        raise InputError(f"Cannot fit {predictor!r}. Choose from: {', '.join((*_WHOLE, *MODELS))}.")
    from foretell.training.unit_models import train as fit

    file = fit(
        store, device, cache, out, predictor=predictor, seed=seed, threads=threads, only_networks=only_networks,
        log=_log,
    )  # fmt: skip
    click.echo(f"written: {printable(str(file))}" if file else f"networks are stored in {printable(str(cache))}")


@click.command()
@click.argument(
    "predictors",
    nargs=-1,
    metavar="PREDICTOR…",
    help="roofline, unit-trees, unit-network [all]; "
    "or one of: partitioner, slices, kernel-classes, compiled, occupancy, sharing, core-sharing, cpu-runs.",
)
@click.option("--split", multiple=True, help="random, architecture or family; repeat [all].")
@click.option("--seeds", type=click.IntRange(min=1), default=5, help="How many seeds.")
@options.store_folder
@options.fitted_device
@options.cache
@click.option(
    "--runs", type=options.PATH, default=Path("out/runs"), help="A folder of finished runs, which are not repeated."
)
@options.only_networks
@click.option("--report", is_flag=True, help="Write the tables of all finished runs to reports/.")
@options.as_json
def evaluate(
    predictors: tuple[str, ...],
    split: tuple[str, ...],
    seeds: int,
    store: Path,
    device: str,
    cache: Path,
    runs: Path,
    only_networks: bool,
    report: bool,
    as_json: bool,
) -> None:
    """Judge predictors on workloads that they were not fitted to."""
    alone = [name for name in predictors or () if name in MODELS]
    if alone:
        if len(predictors or ()) > 1:
            raise InputError(f"{alone[0]!r} has its own tables: evaluate it without other predictors.")
        tables = _module(alone[0]).evaluate(store, device, cache, log=_log)
        show_tables(_module(alone[0]), tables, report=report, as_json=as_json)
        return
    if "transfer" in predictors:
        raise InputError(
            "transfer is for devices without measurements, so these data cannot judge it. "
            "benchmarks/other_gpus.py compares it with published results."
        )
    from foretell.training import unit_models as workflow

    _check_names(predictors, workflow.FITTERS)
    finished = workflow.evaluate(
        predictors or list(workflow.FITTERS), store, device, cache, runs, splits=split or workflow.SPLITS,
        seeds=range(seeds), only_networks=only_networks, log=_log,
    )  # fmt: skip
    if report:
        file = workflow.write_report(workflow.finished(store, device, runs), Path("reports"))
        click.echo(f"written: {printable(str(file))}", err=as_json)
    show_runs(finished, as_json=as_json)


def _check_names(predictors: tuple[str, ...], whole: Iterable[str]) -> None:
    known = (*whole, *MODELS)
    for name in predictors:
        if name not in known:
            raise InputError(f"Cannot judge {name!r}. Choose from: {', '.join(known)}.")


def show_runs(runs: list[Any], *, as_json: bool) -> None:
    """Print every run in one line, or all of them as JSON."""
    from dataclasses import asdict

    if as_json:
        click.echo(json.dumps([asdict(run) for run in runs], indent=1))
        return
    for run in runs:
        figures = ", ".join(
            f"{metric}{'' if mode == 'all' else f' in {mode}'} {figures['mape']:.1%}"
            for metric, modes in run.figures.items()
            for mode, figures in modes.items()
            if mode == "all" or "all" not in modes
        )
        click.echo(f"{run.predictor}, split by {run.split}, seed {run.seed}: {figures}")


def _module(model: str) -> Any:
    return importlib.import_module(MODELS[model])


def show_tables(workflow: Any, tables: list[Any], *, report: bool, as_json: bool) -> None:
    """Print the results of a model in `MODELS`: as JSON, or only the tables that compare it with other models."""
    if report:
        click.echo(f"written: {printable(str(workflow.write_report(tables, Path('reports'))))}", err=as_json)
    if as_json:
        click.echo(json.dumps([json.loads(table.to_json()) for table in tables], indent=1))
        return
    shown = [table for table in tables if table.ranked] or tables[:1]
    click.echo("\n\n".join(table.to_markdown() for table in shown))
    if len(shown) < len(tables) and not report:
        click.echo(f"\n{len(tables) - len(shown)} more tables: --report or --json")


def _log(text: str) -> None:
    click.echo(text, err=True)
