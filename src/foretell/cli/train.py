"""Cli: ``foretell train`` and ``foretell evaluate``: fit predictors to measurements, and judge them."""

import importlib
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from foretell.cli import options
from foretell.errors import InputError
from foretell.rendering.terminal.printable import printable

# models beside the predictors of whole workloads, and the modules that fit and judge them
MODELS = {
    "partitioner": "foretell.training.fusion",
    "slices": "foretell.training.slices",
    "kernel-classes": "foretell.training.kernel_classes",
    "compiled": "foretell.training.compiled",
}
Store = Annotated[Path, typer.Option("--store", help="A folder of Parquet files.")]
Device = Annotated[str, typer.Option("--device", "-d", help="The device whose measurements are used.")]
Cache = Annotated[Path, typer.Option("--cache", help="Where extracted features and fitted networks are kept.")]
OnlyNetworks = Annotated[bool, typer.Option("--only-networks", help="Fit networks, keep them in --cache, and stop.")]


def train(
    store: Store = Path("data"),
    device: Device = "h200",
    out: Annotated[Path, typer.Option("--out", help="Folder of the fitted predictor.")] = Path("out/trained"),
    cache: Cache = Path("out/training"),
    seed: Annotated[int, typer.Option("--seed", help="Another seed gives slightly other trees.")] = 0,
    threads: Annotated[int, typer.Option("--threads", min=1, help="Threads for fitting trees.")] = 1,
    predictor: Annotated[
        str,
        typer.Option(
            "--predictor",
            "-p",
            help="unit-network, unit-trees, partitioner, slices, kernel-classes or compiled.",
        ),
    ] = "unit-network",
    only_networks: OnlyNetworks = False,
) -> None:
    """Fit a predictor to all measurements of a device; networks on a GPU where there is one."""
    if predictor in MODELS:
        file = _module(predictor).train(store, device, cache, out, log=_log)
        typer.echo(f"written: {printable(str(file))}")
        return
    from foretell.training.unit_models import train as fit

    file = fit(
        store, device, cache, out, predictor=predictor, seed=seed, threads=threads, only_networks=only_networks,
        log=_log,
    )  # fmt: skip
    typer.echo(f"written: {printable(str(file))}" if file else f"networks are kept in {printable(str(cache))}")


def evaluate(
    predictors: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PREDICTOR…",
            show_default=False,
            help="roofline, unit-trees, unit-network [all]; alone: partitioner, slices, kernel-classes, compiled.",
        ),
    ] = None,
    split: Annotated[
        list[str] | None,
        typer.Option("--split", help="random, architecture or family; repeat [all].", show_default=False),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many seeds.")] = 5,
    store: Store = Path("data"),
    device: Device = "h200",
    cache: Cache = Path("out/training"),
    runs: Annotated[Path, typer.Option("--runs", help="Finished runs; those are not repeated.")] = Path("out/runs"),
    only_networks: OnlyNetworks = False,
    report: Annotated[
        bool, typer.Option("--report", help="Write the tables of all finished runs to reports/.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Judge predictors on workloads they have not seen."""
    alone = [name for name in predictors or () if name in MODELS]
    if alone:
        if len(predictors or ()) > 1:
            raise InputError(f"{alone[0]!r} is judged on tables of its own: name it alone.")
        tables = _module(alone[0]).evaluate(store, device, cache, log=_log)
        show_tables(_module(alone[0]), tables, report=report, as_json=as_json)
        return
    from foretell.training import unit_models as workflow

    found = workflow.evaluate(
        predictors or list(workflow.FITTERS), store, device, cache, runs, splits=split or workflow.SPLITS,
        seeds=range(seeds), only_networks=only_networks, log=_log,
    )  # fmt: skip
    if report:
        file = workflow.write_report(workflow.finished(store, device, runs), Path("reports"))
        typer.echo(f"written: {printable(str(file))}", err=as_json)
    show_runs(found, as_json=as_json)


def show_runs(found: list[Any], *, as_json: bool) -> None:
    """Every run in one line, or all of them as JSON."""
    from dataclasses import asdict

    if as_json:
        typer.echo(json.dumps([asdict(run) for run in found], indent=1))
        return
    for run in found:
        figures = ", ".join(
            f"{metric}{'' if mode == 'all' else f' in {mode}'} {figures['mape']:.1%}"
            for metric, modes in run.figures.items()
            for mode, figures in modes.items()
            if mode == "all" or "all" not in modes
        )
        typer.echo(f"{run.predictor}, split by {run.split}, seed {run.seed}: {figures}")


def _module(model: str) -> Any:
    return importlib.import_module(MODELS[model])


def show_tables(workflow: Any, found: list[Any], *, report: bool, as_json: bool) -> None:
    """How a model does that is no predictor of whole workloads; shown are the tables that compare it with others."""
    if report:
        typer.echo(f"written: {printable(str(workflow.write_report(found, Path('reports'))))}", err=as_json)
    if as_json:
        typer.echo(json.dumps([json.loads(table.to_json()) for table in found], indent=1))
        return
    shown = [table for table in found if table.ranked] or found[:1]
    typer.echo("\n\n".join(table.to_markdown() for table in shown))
    if len(shown) < len(found) and not report:
        typer.echo(f"\n{len(found) - len(shown)} more tables: --report or --json")


def _log(text: str) -> None:
    typer.echo(text, err=True)
