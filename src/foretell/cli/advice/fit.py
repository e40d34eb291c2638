"""Cli: ``foretell fit``."""

import json

import click

from foretell.cli import options
from foretell.rendering.terminal.printable import printable
from foretell.rendering.terminal.progress import working


@click.command()
@options.model
@click.option("--device", "-d", default="h200", help="A device; see: foretell devices")
@options.batch_size
@options.inputs
@options.dtype
@options.mode
@click.option("slice_", "--slice", help="A part of the device: mig:1g.18gb, mps:30, sms:66.")
@click.option("--optimizer", help="sgd (momentum) or adamw, in training.")
@click.option("--predictor", help="A predictor's name [the best for the workload].")
@options.context
@options.reading
@options.allow_unknown
@options.as_json
def run(
    model: str,
    device: str,
    batch_size: int,
    inputs: tuple[str, ...],
    dtype: str,
    mode: str,
    slice_: str | None,
    optimizer: str | None,
    predictor: str | None,
    context: int | None,
    trust: bool,
    allow_unknown: bool,
    no_cache: bool,
    memory_limit_gib: float | None,
    timeout_s: float | None,
    as_json: bool,
) -> None:
    """Does MODEL fit into the memory of a device: yes, perhaps or no (exit code 0, 3 or 4), and what would make it fit.

    Perhaps means that the interval of the prediction crosses the capacity.
    """
    from foretell.workflows.memory.fit import fit

    with working(f"Reading {model}"):
        answer = fit(
            model,
            device=device,
            batch_size=batch_size,
            input_shape=list(inputs) or None,
            dtype=dtype,
            mode=mode,
            slice=slice_,
            optimizer=optimizer,
            predictor=predictor,
            context=context,
            trust=trust,
            allow_unknown=allow_unknown,
            use_cache=not no_cache,
            memory_limit_gib=memory_limit_gib,
            timeout_s=timeout_s,
        )
    if as_json:
        # The model as the user wrote it, not the name of its graph.
        click.echo(json.dumps({**answer.to_dict(), "model": model}, indent=1, allow_nan=False))
    else:
        for line in repr(answer).splitlines():
            click.echo(printable(line))
        for warning in answer.prediction.warnings:
            click.echo(f"note: {printable(warning)}", err=True)
    raise click.exceptions.Exit(answer.exit_code)
