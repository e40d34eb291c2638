"""Cli: ``foretell adapt``."""

import json
from pathlib import Path

import click

from foretell.cli import options
from foretell.errors import InputError
from foretell.rendering.terminal.printable import printable


@click.command()
@click.option("--device", "-d", required=True, help="A device, or a file such as my-gpu.toml; see: foretell devices")
@click.option(
    "source",
    "--from",
    type=options.PATH,
    metavar="STORE|FILE.csv",
    help="Measurements: a folder of foretell profile or collect, or a CSV file with the columns "
    "model,batch_size,input,dtype,mode,latency_ms[,memory_mib,power_w].",
)
@click.option("out", "--out", "-o", type=options.OutputFile(), help="A file for the predictor, such as my-gpu.zip.")
@click.option("--keep/--no-keep", default=True, help="Keep it in the user's folder: predict then uses it by itself.")
@click.option("--base", help="The predictor to start from [the best for the device].")
@click.option(
    "--suggest", type=click.IntRange(min=1, max=200), metavar="N", help="Write a plan for foretell collect instead."
)
@click.option(
    "--check", is_flag=True, help="Only compare new measurements with the prediction: has the device changed?"
)
@click.option("--predictor", type=options.PATH, help="With --check: the file to check [the one in the user's folder].")
@options.trust
@options.as_json
def run(
    device: str,
    source: Path | None,
    out: Path | None,
    keep: bool,
    base: str | None,
    suggest: int | None,
    check: bool,
    predictor: Path | None,
    trust: bool,
    as_json: bool,
) -> None:
    """Make a predictor for a device from a few measurements of it.

    It answers by itself afterwards: foretell predict MODEL --device DEVICE.
    """
    if suggest is not None:
        if check or source:
            raise InputError("--suggest writes a plan of what to measure: leave out --from and --check.")
        from foretell.workflows.adapting.suggest import suggest as suggest_models

        suggestion = suggest_models(device, suggest, out=out or Path("adapt-plan.toml"))
        click.echo(json.dumps(suggestion.to_dict(), indent=1) if as_json else _text(suggestion))
        return
    if source is None:
        raise InputError(
            "Give measurements with --from STORE or --from FILE.csv, or ask what to measure: --suggest 16."
        )
    if check:
        from foretell.workflows.adapting.check import check as check_drift

        drift = check_drift(device, source, predictor=predictor, trust=trust, log=_quiet)
        click.echo(json.dumps(drift.to_dict(), indent=1) if as_json else _text(drift))
        return
    if predictor is not None:
        raise InputError("--predictor is for --check; the predictor to start from is --base.")
    from foretell.workflows.adapting.adapt import adapt

    adaptation = adapt(device, source, out=out, keep=keep, base=base, trust=trust, log=_quiet if as_json else _progress)
    click.echo(json.dumps(adaptation.to_dict(), indent=1) if as_json else _text(adaptation))


def _text(record: object) -> str:
    return "\n".join(printable(line) for line in repr(record).splitlines())


def _progress(text: str) -> None:
    click.echo(printable(text), err=True)


def _quiet(_: str) -> None:
    pass
