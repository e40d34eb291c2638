"""Cli: ``foretell profile``."""

import json

import click

from foretell.cli import options
from foretell.rendering.terminal.progress import working

FAILED = 2


@click.command()
@click.argument(
    "model",
    metavar="MODEL",
    help="timm:NAME · torchvision:NAME · hf:ID · config.json · synthetic:KIND?… · net.py:build · model.onnx",
)
@click.option("--device", "-d", default="cpu", help="Run on cpu or cuda.")
@options.batch_size
@options.inputs
@click.option("--dtype", default="fp32", help="fp32, tf32, fp16 or bf16; in training bf16 means autocast.")
@options.mode
@click.option("--optimizer", help="sgd (momentum) or adamw, in training.")
@options.channels_last
@click.option(
    "--runtime", help="cuda: cuda-graph, eager, compiled; cpu: eager, compiled, onnxruntime. The first is the default."
)
@click.option("--energy", is_flag=True, help="Read the GPU's energy counter.")
@click.option("--kernels", is_flag=True, help="Trace one run: kernels, or operators on a CPU.")
@click.option("--fusion", help="Which operators fuse: inductor or onnxruntime.")
@click.option("--occupancy", is_flag=True, help="Achieved occupancy by counters (ncu).")
@click.option("slice_", "--slice", help="A share of the GPU, by MPS: 20%.")
@click.option("--threads", type=int, default=1, help="CPU threads, with --device cpu.")
@options.context
@options.trust
@click.option(
    "memory_limit_gib", "--memory-limit", type=float, metavar="GIB", help="Give up when it takes more main memory."
)
@click.option("timeout_s", "--timeout", type=float, metavar="S", help="Give up after so many seconds [600].")
@click.option("--store", help="Append to a folder of Parquet files, or postgresql://…")
@options.as_json
def run(
    model: str,
    device: str,
    batch_size: int,
    inputs: tuple[str, ...],
    dtype: str,
    mode: str,
    optimizer: str | None,
    channels_last: bool,
    runtime: str | None,
    energy: bool,
    kernels: bool,
    fusion: str | None,
    occupancy: bool,
    slice_: str | None,
    threads: int,
    context: int | None,
    trust: bool,
    memory_limit_gib: float | None,
    timeout_s: float | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Run MODEL on this machine and measure latency, memory, energy and kernels."""
    from foretell.workflows.measure.profile import TIMEOUT_S, predict_beside, profile

    with working(f"Measuring {model}"):
        measured = profile(
            model,
            device=device,
            batch_size=batch_size,
            input_shape=list(inputs) or None,
            dtype=dtype,
            mode=mode,
            optimizer=optimizer,
            channels_last=channels_last,
            runtime=runtime,
            energy=energy,
            kernels=kernels,
            fusion=fusion,
            occupancy=occupancy,
            slice=slice_,
            threads=threads,
            context=context,
            trust=trust,
            memory_limit_gib=memory_limit_gib,
            timeout_s=TIMEOUT_S if timeout_s is None else timeout_s,
            store=store,
        )
    if as_json:
        click.echo(json.dumps(measured.to_dict(), indent=1))
    # A failed run also prints its JSON, which has the reason; then the exit code says that it failed.
    if not measured.ok:
        from foretell.cli.running import fail

        raise click.exceptions.Exit(fail(f"{model}: {measured.status}. {measured.error}", debug=False, code=FAILED))
    if not as_json:
        from foretell.rendering.terminal.measurement import show_measurement

        with working(f"Predicting {model}"):
            predicted = predict_beside(measured, trust=trust, memory_limit_gib=memory_limit_gib, timeout_s=timeout_s)
        show_measurement(measured, predicted)
