"""Lab: the commands; those of the product work the same here, with the papers' predictors and more campaigns."""

import importlib
from pathlib import Path
from typing import Annotated, Any

import typer

from foretell.cli import collect, options
from foretell.cli.running import run_application
from foretell.cli.train import Cache, Device, OnlyNetworks, Store, show_runs, show_tables
from foretell.errors import InputError
from foretell.rendering.terminal.printable import printable
from foretell.workflows.measure.collect import CAMPAIGNS

KINDS = ("colocation", "occupancy", "fusion")
LILOU = {"lilou-partitioner": "lab.papers.lilou.partitioner", "lilou-analyser": "lab.papers.lilou.analyser"}
FitSeconds = Annotated[
    float | None, typer.Option("--fit-seconds", help="Limit for each network [none].", show_default=False)
]

app = typer.Typer(
    name="lab",
    help="Networks of papers, campaigns and comparisons.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def register(
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback when something fails.")] = False,
) -> None:
    """Networks of papers, campaigns and comparisons."""
    del debug
    for kind in KINDS:
        CAMPAIGNS.register(kind, f"lab.campaigns.{kind}:run")


app.command("collect")(collect.run)


@app.command()
def fit(
    network: Annotated[str, typer.Argument(help="dippm, trappm, gcn, gat, gin, nnlqp, brp-nas or mlp.")],
    store: Store = Path("data"),
    device: Device = "h200",
    out: Annotated[Path, typer.Option("--out", help="Folder of the fitted network.")] = Path("out/trained"),
    cache: Cache = Path("out/training"),
    seed: Annotated[int, typer.Option("--seed", help="Seed of the split and of the initial weights.")] = 0,
    fit_seconds: FitSeconds = None,
    start: Annotated[
        Path | None,
        typer.Option(
            "--start", help="Start from this FILE.onnx, to transfer it to another device.", show_default=False
        ),
    ] = None,
) -> None:
    """Fit a graph network of a paper to all measurements of a device, and write it as ONNX."""
    from lab.judging.graph_fits import MODES
    from lab.judging.graph_serving import train_graph_network

    if network not in MODES:
        raise InputError(f"Unknown network {network!r}. Choose from: {', '.join(MODES)}.")
    files = train_graph_network(
        network, store, device, cache, out, seed=seed, seconds=fit_seconds, start=start, log=_log
    )
    for file in files:
        typer.echo(f"written: {printable(str(file))}")


@app.command()
def predict(
    file: Annotated[Path, typer.Argument(help="A network that python -m lab fit wrote.")],
    model: Annotated[str, typer.Argument(help="A model, as for foretell predict.")],
    batch_size: Annotated[int, typer.Option("--batch-size", "-b", help="Items a batch.")] = 1,
    dtype: Annotated[str, typer.Option("--dtype", help="fp32, fp16 or bf16.")] = "fp32",
    mode: Annotated[str, typer.Option("--mode", help="inference, training, prefill or decode.")] = "inference",
    device: Device = "h200",
) -> None:
    """What a fitted network of a paper predicts for a model, as JSON."""
    import json

    from foretell.workflows.workload import read_workload
    from lab.papers.graph_networks.predictor import GraphPredictor

    workload = read_workload(model, device=device, batch_size=batch_size, dtype=dtype, mode=mode)
    typer.echo(json.dumps(GraphPredictor.from_file(file).predict(workload).to_dict(), indent=1))


@app.command()
def evaluate(
    predictors: Annotated[
        list[str],
        typer.Argument(
            metavar="PREDICTOR…",
            help="dippm, gcn, gat, gin, trappm, nnlqp, brp-nas, mlp, linear, gradient-boosting, and the product's; "
            "alone: lilou-partitioner, lilou-analyser.",
        ),
    ],
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
    processes: Annotated[int, typer.Option("--processes", min=1, max=64, help="Networks fitted at the same time.")] = 1,
    label_shares: Annotated[
        str | None,
        typer.Option(
            "--label-shares",
            metavar="0.1,…,1",
            show_default=False,
            help="For trappm: use these shares of the training side, with and without pre-training.",
        ),
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Write the tables of all finished runs to reports/.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Judge predictors of papers beside the product's, on workloads that none has seen."""
    if any(name in LILOU for name in predictors):
        if len(predictors) > 1:
            raise InputError("LILOU's parts have tables of their own: name one of them, and nothing else.")
        module: Any = importlib.import_module(LILOU[predictors[0]])
        tables = module.evaluate(
            store, device, cache, only_networks=only_networks, fit_seconds=fit_seconds, processes=processes, log=_log
        )
        if only_networks:
            typer.echo(f"networks are cached in {printable(str(cache))}")
        else:
            show_tables(module, tables, report=report, as_json=as_json)
        return
    from foretell.training import unit_models
    from lab.judging import comparison

    finished_runs = comparison.evaluate(
        predictors, store, device, cache, runs, splits=split or unit_models.SPLITS, seeds=range(seeds),
        only_networks=only_networks, fit_seconds=fit_seconds, label_shares=read_shares(label_shares),
        processes=processes, log=_log,
    )  # fmt: skip
    if report:
        file = unit_models.write_report(unit_models.finished(store, device, runs), Path("reports"))
        typer.echo(f"written: {printable(str(file))}", err=as_json)
    show_runs(finished_runs, as_json=as_json)


def read_shares(text: str | None) -> tuple[float, ...]:
    """Numbers separated by commas."""
    try:
        return tuple(float(share) for share in text.split(",")) if text else ()
    except ValueError:
        raise InputError(f"Got the shares {text!r}; give numbers separated by commas, such as 0.1,0.5,1.") from None


def _log(text: str) -> None:
    typer.echo(text, err=True)


def main(argv: list[str] | None = None) -> None:
    """Run one command; an error is one line on standard error, as in the product."""
    run_application(app, "lab", argv)
