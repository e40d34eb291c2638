"""Cli: ``foretell profile``."""

import json
from typing import Annotated

import typer

from foretell.cli import options
from foretell.rendering.terminal.progress import working

FAILED = 2


def run(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="timm:NAME · torchvision:NAME · hf:ID · config.json · synthetic:KIND?… · net.py:build · model.onnx",
            show_default=False,
        ),
    ],
    device: Annotated[str, typer.Option("--device", "-d", help="Run on cpu or cuda.")] = "cpu",
    batch_size: options.BatchSize = 1,
    inputs: options.Inputs = None,
    dtype: Annotated[
        str, typer.Option("--dtype", help="fp32, fp16 or bf16; in training bf16 means autocast.")
    ] = "fp32",
    mode: options.Mode = "inference",
    optimizer: Annotated[
        str | None, typer.Option("--optimizer", help="sgd (momentum) or adamw, in training.", show_default=False)
    ] = None,
    runtime: Annotated[
        str | None,
        typer.Option(
            "--runtime",
            help="cuda: cuda-graph, eager, compiled; cpu: eager, compiled, onnxruntime. The first is the default.",
            show_default=False,
        ),
    ] = None,
    energy: Annotated[bool, typer.Option("--energy", help="Read the GPU's energy counter.")] = False,
    kernels: Annotated[bool, typer.Option("--kernels", help="Trace one run: kernels, or operators on a CPU.")] = False,
    fusion: Annotated[
        str | None,
        typer.Option("--fusion", help="Which operators fuse: inductor or onnxruntime.", show_default=False),
    ] = None,
    occupancy: Annotated[bool, typer.Option("--occupancy", help="Achieved occupancy by counters (ncu).")] = False,
    slice_: Annotated[
        str | None, typer.Option("--slice", help="A share of the GPU, by MPS: 20%.", show_default=False)
    ] = None,
    threads: Annotated[int, typer.Option("--threads", help="CPU threads, with --device cpu.")] = 1,
    context: options.Context = None,
    trust: options.Trust = False,
    timeout_s: Annotated[float, typer.Option("--timeout", help="Give up after so many seconds.")] = 600.0,
    store: Annotated[
        str | None,
        typer.Option("--store", help="Append to a folder of Parquet files, or postgresql://…", show_default=False),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Run MODEL on this machine and measure latency, memory, energy and kernels."""
    from foretell.workflows.measure.profile import predict_beside, profile

    with working(f"Measuring {model}"):
        measured = profile(
            model,
            device=device,
            batch_size=batch_size,
            input_shape=inputs,
            dtype=dtype,
            mode=mode,
            optimizer=optimizer,
            runtime=runtime,
            energy=energy,
            kernels=kernels,
            fusion=fusion,
            occupancy=occupancy,
            slice=slice_,
            threads=threads,
            context=context,
            trust=trust,
            timeout_s=timeout_s,
            store=store,
        )
    if as_json:
        typer.echo(json.dumps(measured.to_dict(), indent=1))
    # A failed run also prints its JSON, which has the reason; then the exit code says that it failed.
    if not measured.ok:
        from foretell.cli.running import fail

        raise typer.Exit(fail(f"{model}: {measured.status}. {measured.error}", debug=False, code=FAILED))
    if not as_json:
        from foretell.rendering.terminal.measurement import show_measurement

        with working(f"Predicting {model}"):
            predicted = predict_beside(measured, trust=trust)
        show_measurement(measured, predicted)
