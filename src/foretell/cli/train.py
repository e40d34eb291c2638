"""cli: ``foretell train`` and ``foretell evaluate``: fit predictors to measurements, and judge them."""

import importlib
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from foretell.cli import options
from foretell.cli.printable import printable
from foretell.errors import InputError

# models beside the predictors of whole workloads, and the workflows that fit and judge them
MODELS = {"partitioner": "fusion", "slices": "slices", "kernel-classes": "kernel_classes", "compiled": "compiled"}
# networks of papers that are judged beside those, and ship with nothing
JUDGED = {"lilou-partitioner": "lilou_partitioner", "lilou-analyser": "lilou_analyser"}
Store = Annotated[Path, typer.Option("--store", help="A folder of Parquet files.")]
Device = Annotated[str, typer.Option("--device", "-d", help="The device whose measurements are used.")]
Cache = Annotated[Path, typer.Option("--cache", help="Where extracted features and fitted networks are kept.")]
FitSeconds = Annotated[
    float | None, typer.Option("--fit-seconds", help="Limit for each graph network [none].", show_default=False)
]
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
            help="unit-network, unit-trees, partitioner, slices, kernel-classes, compiled; of papers dippm, trappm, "
            "gcn, gat, gin, nnlqp, brp-nas, mlp.",
        ),
    ] = "unit-network",
    only_networks: OnlyNetworks = False,
    fit_seconds: FitSeconds = None,
    start: Annotated[
        Path | None,
        typer.Option(
            "--start", help="Go on from this FILE.onnx: dippm, trappm, … to another device.", show_default=False
        ),
    ] = None,
) -> None:
    """Fit a predictor to all measurements of a device; networks on a GPU where there is one."""
    if predictor in MODELS:
        file = _workflow(predictor).train(store, device, cache, out, say=_say)
        typer.echo(f"written: {printable(str(file))}")
        return
    from foretell.workflows.train import GRAPH_NETWORKS
    from foretell.workflows.train import train as fit

    if predictor in GRAPH_NETWORKS:
        from foretell.workflows.graph_serving import train_graph_network

        files = train_graph_network(
            predictor, store, device, cache, out, seed=seed, seconds=fit_seconds, start=start, say=_say
        )
        for each in files:
            typer.echo(f"written: {printable(str(each))}")
        return
    file = fit(
        store, device, cache, out, predictor=predictor, seed=seed, threads=threads, only_networks=only_networks,
        say=_say,
    )  # fmt: skip
    typer.echo(f"written: {printable(str(file))}" if file else f"networks are kept in {printable(str(cache))}")


def evaluate(
    predictors: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PREDICTOR…",
            show_default=False,
            help="Their names [all but dippm, gcn, gat, gin, trappm, nnlqp, brp-nas, mlp]; "
            "alone: partitioner, slices, kernel-classes, compiled, lilou-partitioner, lilou-analyser",
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
    fit_seconds: FitSeconds = None,
    processes: Annotated[
        int, typer.Option("--processes", min=1, max=64, help="Graph networks that are fitted side by side.")
    ] = 1,
    label_shares: Annotated[
        str | None,
        typer.Option(
            "--label-shares",
            metavar="0.1,…,1",
            show_default=False,
            help="For trappm: learn from these shares of the training side, with and without pre-training.",
        ),
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Write the tables of all finished runs to reports/.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Judge predictors on workloads they have not seen; graph networks of the papers only where they are named."""
    alone = [name for name in predictors or () if name in MODELS or name in JUDGED]
    if alone:
        if len(predictors or ()) > 1:
            raise InputError(f"{alone[0]!r} is judged on tables of its own: name it alone.")
        given: dict[str, Any] = {}
        if alone[0] in JUDGED:
            given = {"only_networks": only_networks, "fit_seconds": fit_seconds, "processes": processes}
        found = _workflow(alone[0]).evaluate(store, device, cache, **given, say=_say)
        if given and only_networks:
            typer.echo(f"networks are kept in {printable(str(cache))}")
            return
        _show_model(_workflow(alone[0]), found, report=report, as_json=as_json)
        return
    from dataclasses import asdict

    from foretell.workflows import train as workflow

    found = workflow.evaluate(
        predictors or list(workflow.FITTERS), store, device, cache, runs, splits=split or workflow.SPLITS,
        seeds=range(seeds), only_networks=only_networks, fit_seconds=fit_seconds, label_shares=_shares(label_shares),
        processes=processes, say=_say,
    )  # fmt: skip
    if report:
        file = workflow.write_report(workflow.finished(store, device, runs), Path("reports"))
        typer.echo(f"written: {printable(str(file))}", err=as_json)
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


def _workflow(model: str) -> Any:
    return importlib.import_module(f"foretell.workflows.{(MODELS | JUDGED)[model]}")


def _show_model(workflow: Any, found: list[Any], *, report: bool, as_json: bool) -> None:
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


def _shares(text: str | None) -> tuple[float, ...]:
    try:
        return tuple(float(share) for share in text.split(",")) if text else ()
    except ValueError:
        raise InputError(f"Got the shares {text!r}; give numbers with commas between, such as 0.1,0.5,1.") from None


def _say(text: str) -> None:
    typer.echo(text, err=True)
