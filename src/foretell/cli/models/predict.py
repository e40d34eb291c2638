"""Cli: ``foretell predict``."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from foretell.cli import options
from foretell.rendering.terminal.progress import working

EXPLAIN, WORDS = "--explain", ("units", "kernels")


class Command(TyperCommand):
    """A command whose ``--explain`` has an optional value.

    Typer has no such options: it would take the model in ``predict --explain model.onnx`` for the value. So the
    arguments are rewritten before Typer parses them.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments as Typer does, after every ``--explain`` has a value."""
        return super().parse_args(ctx, with_word(args))


def with_word(arguments: Sequence[str]) -> list[str]:
    """The arguments with a value for every ``--explain``; ``units`` is the default.

    >>> with_word(["--explain", "model.onnx"]), with_word(["model.onnx", "--explain", "kernels"])
    (['--explain=units', 'model.onnx'], ['model.onnx', '--explain=kernels'])
    """
    merged: list[str] = []
    for argument in arguments:
        if merged and merged[-1] == EXPLAIN and argument in WORDS:
            merged[-1] = f"{EXPLAIN}={argument}"
        else:
            merged.append(argument)
    return [f"{EXPLAIN}={WORDS[0]}" if argument == EXPLAIN else argument for argument in merged]


def run(
    model: options.Model,
    device: Annotated[str, typer.Option("--device", "-d", help="A device; see: foretell devices")] = "h200",
    batch_size: options.BatchSize = 1,
    inputs: options.Inputs = None,
    dtype: options.Dtype = "fp32",
    mode: options.Mode = "inference",
    slice_: Annotated[
        str | None,
        typer.Option("--slice", help="A part of the device: mps:30, mig:1g.18gb, sms:66.", show_default=False),
    ] = None,
    runtime: Annotated[
        str, typer.Option("--runtime", help="What drives the device: cuda-graph, eager or compile.")
    ] = "cuda-graph",
    optimizer: Annotated[
        str | None, typer.Option("--optimizer", help="sgd (momentum) or adamw, in training.", show_default=False)
    ] = None,
    predictor: Annotated[
        str | None,
        typer.Option("--predictor", help="A predictor's name [the best for the workload].", show_default=False),
    ] = None,
    latency_limit_ms: Annotated[
        float | None,
        typer.Option(
            "--latency-limit-ms",
            metavar="MS",
            help="The longest latency allowed on the MIG profile.",
            show_default=False,
        ),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(
            "--store",
            help="A folder of measurements; one of the same workload is shown instead of a prediction.",
            show_default=False,
        ),
    ] = None,
    explain: Annotated[
        str,
        typer.Option(
            "--explain",
            metavar="[units|kernels]",
            help="Also show which units of work, or which kernels, take the time.",
            show_default=False,
        ),
    ] = "",
    trace: Annotated[
        Path | None,
        typer.Option("--trace", help="Write the units as a trace for Chrome or Perfetto.", show_default=False),
    ] = None,
    context: options.Context = None,
    trust: options.Trust = False,
    allow_unknown: options.AllowUnknown = False,
    no_cache: options.NoCache = False,
    as_json: options.Json = False,
) -> None:
    """Predict latency, memory, energy, power and the MIG profile of MODEL on a device."""
    from foretell.workflows.predict import predict

    with working(f"Reading {model}"):
        prediction = predict(
            model,
            device=device,
            batch_size=batch_size,
            input_shape=inputs,
            dtype=dtype,
            mode=mode,
            runtime=runtime,
            slice=slice_,
            optimizer=optimizer,
            predictor=predictor,
            latency_limit_ms=latency_limit_ms,
            context=context,
            trust=trust,
            allow_unknown=allow_unknown,
            use_cache=not no_cache,
            explain=explain or False,
            trace=trace,
            store=store,
        )
    if as_json:
        # The model as the user wrote it, not the name of its graph.
        typer.echo(json.dumps({**prediction.to_dict(), "model": model}, indent=1))
        return
    from foretell.rendering.terminal.prediction import show_prediction

    show_prediction(prediction, model)
