"""Lab: the commands; those of the product work the same here, with the papers' predictors and more campaigns."""

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from foretell.cli import collect, options
from foretell.cli.running import run_application
from foretell.cli.train import show_runs, show_tables
from foretell.errors import InputError
from foretell.rendering.terminal.printable import printable
from foretell.workflows.measure.collect import CAMPAIGNS

KINDS = ("colocation", "occupancy", "fusion")
# what has tables of its own: predictors of papers, the simulation of a GPU that jobs share, and GPUs left out
ALONE = {
    "lilou-partitioner": "lab.papers.lilou.partitioner",
    "lilou-analyser": "lab.papers.lilou.analyser",
    "dnn-occu": "lab.papers.dnn_occu.study",
    "mixes": "lab.judging.mixes",
    "flattened": "lab.papers.flattened.study",
    "sharing": "lab.papers.flattened.slowdowns",
    "collectives": "lab.judging.collectives",
    "llm-trees": "lab.papers.llm_trees",
    "serving-simulation": "lab.judging.llm.serving_simulation",
    "llm": "lab.judging.llm.serving",
    "adapt": "lab.adapt.judge",
    "transfer": "lab.transfer.judge",
}
# judged by public tables, whose folder follows the name; adapt and transfer need graphs of the store as well
FROM_TABLES = ("collectives", "llm", "llm-trees", "serving-simulation", "adapt", "transfer")


@click.group(no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--debug", is_flag=True, help="Show a traceback when something fails.")
def app(debug: bool) -> None:
    """Networks of papers, campaigns and comparisons."""
    del debug
    for kind in KINDS:
        CAMPAIGNS.register(kind, f"lab.campaigns.{kind}:run")


app.add_command(collect.run, "collect")


@app.command()
@click.argument("network", help="dippm, trappm, gcn, gat, gin, nnlqp, brp-nas or mlp; or transfer.")
@click.argument("tables", type=options.PATH, required=False, help="For transfer: the folder of public tables.")
@options.store_folder
@options.fitted_device
@click.option("--out", type=options.PATH, default=Path("out/trained"), help="Folder of the fitted network.")
@options.cache
@click.option("--seed", type=int, default=0, help="Seed of the split and of the initial weights.")
@click.option("--fit-seconds", type=float, help="Limit for each network [none].")
@click.option("--start", type=options.PATH, help="Start from this FILE.onnx, to transfer it to another device.")
def fit(
    network: str,
    tables: Path | None,
    store: Path,
    device: str,
    out: Path,
    cache: Path,
    seed: int,
    fit_seconds: float | None,
    start: Path | None,
) -> None:
    """Fit a graph network of a paper to all measurements of a device, and write it as ONNX.

    transfer is fitted to public tables of many GPUs, and takes graphs of networks from --store.
    """
    if network == "transfer":
        from lab.transfer import judge

        if tables is None or not tables.is_dir():
            raise InputError("transfer is fitted to public tables: give their folder after the name.")
        judge.evaluate(store, device, cache, tables=tables, log=_log, folder=out)
        return
    from lab.judging.graph_fits import MODES
    from lab.judging.graph_serving import train_graph_network

    if network not in MODES:
        raise InputError(f"Unknown network {network!r}. Choose from: {', '.join(MODES)}.")
    files = train_graph_network(
        network, store, device, cache, out, seed=seed, seconds=fit_seconds, start=start, log=_log
    )
    for file in files:
        click.echo(f"written: {printable(str(file))}")


@app.command("fit-llm")
@click.argument("tables", type=options.PATH, help="The folder of aiconfigurator's tables.")
@click.option("--out", type=options.PATH, default=Path("out/trained"), help="Folder of the fitted files.")
@click.option("--parts", type=options.PATH, default=Path("data/h200"), help="Parts of steps that we measured.")
@click.option("--only-engines", is_flag=True, help="Keep the shipped kernels, and fit the engines' times only.")
def fit_llm(tables: Path, out: Path, parts: Path, only_engines: bool) -> None:
    """Fit the kernels of serving engines (ten minutes), and the times of their hosts, for foretell llm."""
    from foretell.predictors.fitted_files import write_fitted
    from foretell.predictors.llm import engines, kernels
    from foretell.training.llm_kernels import fit_kernels
    from foretell.training.llm_parts import fit_parts, part_rows, read_lines
    from lab.judging.llm.serving import fit_engines
    from lab.judging.llm.serving_rows import read_serving

    out.mkdir(parents=True, exist_ok=True)
    fitted = kernels.shipped_kernels() if only_engines else fit_kernels(tables)
    if not only_engines:
        write_fitted(out, kernels.FILE, kernels.kernels_to_bytes(fitted))
    if parts.is_dir():
        fitted = replace(fitted, own=fit_parts(part_rows(read_lines(parts, "parts")), fitted))
        write_fitted(out, kernels.PARTS_FILE, kernels.parts_to_bytes(fitted.own))
    times = fit_engines(read_serving(tables), fitted)
    write_fitted(out, engines.FILE, times.to_bytes())
    click.echo(f"written: {printable(str(out))}")


@app.command()
@click.argument("file", type=options.PATH, help="A network that python -m lab fit wrote.")
@click.argument("model", help="A model, as for foretell predict.")
@click.option("--batch-size", "-b", type=int, default=1, help="Items a batch.")
@click.option("--dtype", default="fp32", help="fp32, fp16 or bf16.")
@click.option("--mode", default="inference", help="inference, training, prefill or decode.")
@options.fitted_device
def predict(file: Path, model: str, batch_size: int, dtype: str, mode: str, device: str) -> None:
    """What a fitted network of a paper predicts for a model, as JSON."""
    import json

    from foretell.workflows.workload import read_workload
    from lab.papers.graph_networks.predictor import GraphPredictor

    workload = read_workload(model, device=device, batch_size=batch_size, dtype=dtype, mode=mode)
    click.echo(json.dumps(GraphPredictor.from_file(file).predict(workload).to_dict(), indent=1))


@app.command()
@click.argument(
    "predictors",
    nargs=-1,
    required=True,
    metavar="PREDICTOR…",
    help="dippm, gcn, gat, gin, trappm, nnlqp, brp-nas, mlp, linear, gradient-boosting, and the product's; "
    "alone: lilou-partitioner, lilou-analyser, dnn-occu, flattened, sharing, mixes; with TABLES: "
    "collectives, llm, llm-trees, serving-simulation, adapt, transfer.",
)
@click.option("--split", multiple=True, help="random, architecture or family; repeat [all].")
@click.option("--seeds", type=click.IntRange(min=1), default=5, help="How many seeds.")
@options.store_folder
@options.fitted_device
@options.cache
@click.option("--runs", type=options.PATH, default=Path("out/runs"), help="Finished runs; those are not repeated.")
@options.only_networks
@click.option("--fit-seconds", type=float, help="Limit for each network [none].")
@click.option("--processes", type=click.IntRange(min=1, max=64), default=1, help="Networks fitted at the same time.")
@click.option(
    "--label-shares",
    metavar="0.1,…,1",
    help="For trappm: use these shares of the training side, with and without pre-training.",
)
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
    fit_seconds: float | None,
    processes: int,
    label_shares: str | None,
    report: bool,
    as_json: bool,
) -> None:
    """Judge predictors of papers beside the product's, on workloads that none has seen."""
    further: dict[str, Any] = {}
    if predictors[0] in FROM_TABLES:
        name, *folders = predictors
        if len(folders) != 1 or not Path(folders[0]).is_dir():
            raise InputError(f"{name} is judged by public tables: give their folder after the name.")
        predictors, tables_folder = (name,), Path(folders[0])
        if name in ("adapt", "llm-trees", "transfer"):
            further["tables"] = tables_folder
        else:
            store = tables_folder
    if any(name in ALONE for name in predictors):
        if len(predictors) > 1:
            raise InputError(f"{', '.join(ALONE)} have tables of their own: name one of them, and nothing else.")
        module: Any = importlib.import_module(ALONE[predictors[0]])
        tables = module.evaluate(
            store,
            device,
            cache,
            only_networks=only_networks,
            fit_seconds=fit_seconds,
            processes=processes,
            log=_log,
            **further,
        )
        if only_networks:
            click.echo(f"networks are cached in {printable(str(cache))}")
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
        click.echo(f"written: {printable(str(file))}", err=as_json)
    show_runs(finished_runs, as_json=as_json)


@app.command()
@options.store_folder
def candidates(store: Path) -> None:
    """Describe the models that ``foretell adapt --suggest`` chooses from, and write them into the package."""
    from lab.adapt.candidates import write_candidates

    click.echo(f"written: {printable(str(write_candidates(store, _log)))}")


@app.command("remake")
@click.argument("names", nargs=-1, metavar="[TABLE…]", help="Tables to make again; without a name all are listed.")
@click.option("--tables", type=options.PATH, help="Folder of public tables, for those that read them.")
def remake_tables(names: tuple[str, ...], tables: Path | None) -> None:
    """List every table of the laboratory with the time that it takes, or make some of them again."""
    from lab.remake import listed, remake

    if names:
        remake(names, tables, _log)
    else:
        click.echo("\n".join(listed()))


def read_shares(text: str | None) -> tuple[float, ...]:
    """Numbers separated by commas."""
    try:
        return tuple(float(share) for share in text.split(",")) if text else ()
    except ValueError:
        raise InputError(f"Got the shares {text!r}; give numbers separated by commas, such as 0.1,0.5,1.") from None


def _log(text: str) -> None:
    click.echo(text, err=True)


def main(argv: list[str] | None = None) -> None:
    """Run one command; an error is one line on standard error, as in the product."""
    run_application(app, "lab", argv)
