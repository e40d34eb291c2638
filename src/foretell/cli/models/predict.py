"""Cli: ``foretell predict``."""

import json
from collections.abc import Sequence
from pathlib import Path

import click

from foretell.cli import options
from foretell.rendering.terminal.progress import working

EXPLAIN, WORDS = "--explain", ("units", "kernels")


class Command(click.Command):
    """A command whose ``--explain`` has an optional value.

    Click would take the model in ``predict --explain model.onnx`` for the value. So the arguments are rewritten before
    Click parses them.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments as Click does, after every ``--explain`` has a value."""
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


@click.command(cls=Command)
@options.model
@click.option("--device", "-d", default="h200", help="A device; see: foretell devices")
@options.batch_size
@options.inputs
@options.dtype
@options.mode
@click.option("slice_", "--slice", help="A part of the device: mps:30, mig:1g.18gb, sms:66.")
@click.option(
    "--runtime",
    default="cuda-graph",
    help="What drives the device: cuda-graph, eager or compiled; a CPU: eager or onnxruntime.",
)
@click.option("--threads", type=int, default=1, help="Threads of a CPU: 1 or 2.")
@click.option("--optimizer", help="sgd (momentum) or adamw, in training.")
@options.channels_last
@click.option("--predictor", help="A predictor's name [the best for the workload].")
@click.option("--latency-limit-ms", type=float, metavar="MS", help="The longest latency allowed on the MIG profile.")
@click.option(
    "--store",
    type=options.PATH,
    help="A folder of measurements; one of the same workload is shown instead of a prediction.",
)
@click.option(
    "--explain",
    default="",
    metavar="[units|kernels]",
    help="Also show which units of work, or which kernels, take the time.",
)
@click.option("--gpus", type=int, default=1, help="GPUs that train together, each with --batch-size items.")
@click.option("--parallel", default="ddp", help="How they share the step: ddp, zero1, zero2, zero3 (FSDP) or tensor.")
@click.option("--network", help="Between nodes: infiniband-ndr, -hdr or -edr, or GB/s of one GPU.")
@click.option("--gpus-per-node", type=int, default=8, help="GPUs of one node.")
@click.option("--trace", type=options.OutputFile(), help="Write the units as a trace for Chrome or Perfetto.")
@options.context
@options.reading
@options.allow_unknown
@options.as_written
@options.as_json
def run(
    model: str,
    device: str,
    batch_size: int,
    inputs: tuple[str, ...],
    dtype: str,
    mode: str,
    slice_: str | None,
    runtime: str,
    threads: int,
    optimizer: str | None,
    channels_last: bool,
    predictor: str | None,
    latency_limit_ms: float | None,
    store: Path | None,
    explain: str,
    gpus: int,
    parallel: str,
    network: str | None,
    gpus_per_node: int,
    trace: Path | None,
    context: int | None,
    trust: bool,
    allow_unknown: bool,
    as_written: bool,
    no_cache: bool,
    memory_limit_gib: float | None,
    timeout_s: float | None,
    as_json: bool,
) -> None:
    """Predict latency, memory, energy, power and the MIG profile of MODEL on a device."""
    from foretell.workflows.predict import predict

    with working(f"Reading {model}"):
        prediction = predict(
            model,
            device=device,
            batch_size=batch_size,
            input_shape=list(inputs) or None,
            dtype=dtype,
            mode=mode,
            runtime=runtime,
            threads=threads,
            slice=slice_,
            optimizer=optimizer,
            channels_last=channels_last,
            predictor=predictor,
            latency_limit_ms=latency_limit_ms,
            context=context,
            trust=trust,
            allow_unknown=allow_unknown,
            as_written=as_written,
            use_cache=not no_cache,
            memory_limit_gib=memory_limit_gib,
            timeout_s=timeout_s,
            explain=explain or False,
            trace=trace,
            store=store,
            gpus=gpus,
            parallel=parallel,
            network=network,
            gpus_per_node=gpus_per_node,
        )
    if as_json:
        # The model as the user wrote it, not the name of its graph.
        click.echo(json.dumps({**prediction.to_dict(), "model": model}, indent=1))
        return
    from foretell.rendering.terminal.prediction import show_prediction

    show_prediction(prediction, model)
