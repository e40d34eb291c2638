"""cli: ``foretell train`` and ``foretell evaluate``: fit predictors to measurements, and judge them."""

import json
from pathlib import Path
from typing import Annotated

import typer

from foretell.cli import options
from foretell.cli.printable import printable
from foretell.errors import InputError

PARTITIONER, SLICES = "partitioner", "slices"
KERNELS, COMPILED = "kernel-classes", "compiled"
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
            "--predictor", "-p", help="unit-network, unit-trees, partitioner, slices, kernel-classes or compiled."
        ),
    ] = "unit-network",
    only_networks: OnlyNetworks = False,
) -> None:
    """Fit foretell's own predictor to all measurements of a device; networks on a GPU where there is one."""
    if predictor == PARTITIONER:
        from foretell.workflows.fusion import train as fit_partitioner

        typer.echo(f"written: {printable(str(fit_partitioner(store, out, _say)))}")
        return
    if predictor == SLICES:
        from foretell.workflows.slices import train as fit_slices

        typer.echo(f"written: {printable(str(fit_slices(store, device, cache, out, _say)))}")
        return
    if predictor == KERNELS:
        from foretell.workflows.kernel_classes import train as fit_kernels

        typer.echo(f"written: {printable(str(fit_kernels(store, device, cache, out, say=_say)))}")
        return
    if predictor == COMPILED:
        from foretell.workflows.compiled import train as fit_compiled

        typer.echo(f"written: {printable(str(fit_compiled(store, device, cache, out, _say)))}")
        return
    from foretell.workflows.train import train as fit

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
            "alone: partitioner, slices, kernel-classes, compiled",
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
    fit_seconds: Annotated[
        float | None,
        typer.Option("--fit-seconds", help="Limit for each graph network [none].", show_default=False),
    ] = None,
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
    if predictors and PARTITIONER in predictors:
        if len(predictors) > 1:
            raise InputError(f"The {PARTITIONER} tells fusion, not times: name it alone.")
        _evaluate_partitioner(store, report=report, as_json=as_json)
        return
    if predictors and SLICES in predictors:
        if len(predictors) > 1:
            raise InputError(f"The model of {SLICES} is judged on parts of a device: name it alone.")
        _evaluate_slices(store, device, cache, report=report, as_json=as_json)
        return
    if predictors and KERNELS in predictors:
        if len(predictors) > 1:
            raise InputError(f"The {KERNELS} are no times: name them alone.")
        _evaluate_kernels(store, device, cache, report=report, as_json=as_json)
        return
    if predictors and COMPILED in predictors:
        if len(predictors) > 1:
            raise InputError(f"The model {COMPILED} is judged under torch.compile: name it alone.")
        _evaluate_compiled(store, device, cache, report=report, as_json=as_json)
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


def _evaluate_partitioner(store: Path, *, report: bool, as_json: bool) -> None:
    from foretell.workflows import fusion

    edges = fusion.read_edges(store, _say)
    found = fusion.tables(edges, fusion.judge(edges, _say))
    if report:
        typer.echo(f"written: {printable(str(fusion.write_report(found, Path('reports'))))}", err=as_json)
    if as_json:
        typer.echo(json.dumps([json.loads(table.to_json()) for table in found], indent=1))
    else:
        typer.echo("\n\n".join(table.to_markdown() for table in found if table.ranked))


def _evaluate_slices(store: Path, device: str, cache: Path, *, report: bool, as_json: bool) -> None:
    from foretell.devices import find_device
    from foretell.predictors import find_predictor
    from foretell.workflows import slices

    found = slices.evaluate(store, device, cache, find_predictor(None, find_device(device).id), _say)
    if report:
        typer.echo(f"written: {printable(str(slices.write_report(found, Path('reports'))))}", err=as_json)
    if as_json:
        typer.echo(json.dumps([json.loads(table.to_json()) for table in found], indent=1))
    else:
        typer.echo("\n\n".join(table.to_markdown() for table in found[:-1]))


def _evaluate_kernels(store: Path, device: str, cache: Path, *, report: bool, as_json: bool) -> None:
    from foretell.workflows import kernel_classes

    found = kernel_classes.evaluate(store, device, cache, say=_say)
    if report:
        typer.echo(f"written: {printable(str(kernel_classes.write_report(found, Path('reports'))))}", err=as_json)
    if as_json:
        typer.echo(json.dumps([json.loads(table.to_json()) for table in found], indent=1))
    else:
        typer.echo("\n\n".join(table.to_markdown() for table in found))


def _evaluate_compiled(store: Path, device: str, cache: Path, *, report: bool, as_json: bool) -> None:
    from foretell.workflows import compiled

    found = compiled.evaluate(store, device, cache, _say)
    if report:
        typer.echo(f"written: {printable(str(compiled.write_report(found, Path('reports'))))}", err=as_json)
    if as_json:
        typer.echo(json.dumps([json.loads(table.to_json()) for table in found], indent=1))
    else:
        typer.echo("\n\n".join(table.to_markdown() for table in found[:-1]))


def _shares(text: str | None) -> tuple[float, ...]:
    try:
        return tuple(float(share) for share in text.split(",")) if text else ()
    except ValueError:
        raise InputError(f"Got the shares {text!r}; give numbers with commas between, such as 0.1,0.5,1.") from None


def _say(text: str) -> None:
    typer.echo(text, err=True)
