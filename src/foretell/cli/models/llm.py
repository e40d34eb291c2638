"""Cli: ``foretell llm``."""

import json

import click

from foretell.cli import options
from foretell.rendering.terminal.printable import printable


@click.command()
@click.argument(
    "model", metavar="MODEL", help="meta-llama/Llama-3.1-8B or another name · config.json · a folder with one"
)
@click.option("--device", "-d", default="h200", help="A GPU, or a device file; see: foretell devices")
@click.option("--input-tokens", type=int, default=1024, help="Tokens of a prompt.")
@click.option("--output-tokens", type=int, default=256, help="Tokens of an answer.")
@click.option("--concurrency", "-c", type=int, default=1, help="Requests in flight.")
@click.option("--gpus", type=int, help="How many GPUs [the least that hold it and all requests].")
@click.option("--tensor-parallel", type=int, help="GPUs that share each layer.")
@click.option("--pipeline-parallel", type=int, help="Stages of layers.")
@click.option("--data-parallel", type=int, help="Replicas.")
@click.option("--expert-parallel", type=int, help="GPUs over which the experts of a mixture are spread.")
@click.option("--dtype", default="bf16", help="bf16 or fp16.")
@click.option("--weights", help="fp8, int8, int4, or fp4 on Blackwell [those of the checkpoint].")
@click.option("--kv-dtype", help="bf16 or fp8, of the cache.")
@click.option("--engine", default="paged", help="paged, vllm, sglang, trtllm or eager.")
@click.option("--memory-fraction", type=float, default=0.9, help="The share of a GPU's memory that the engine takes.")
@click.option("--network", help="Between nodes of eight GPUs: infiniband-ndr, -hdr, -edr, or GB/s of a GPU.")
@click.option("--country", help="Use the power grid of this country [the cloud region's].")
@click.option("--pue", type=float, help="Energy of the data centre over that of the GPUs [the cloud's, or 1].")
@options.as_json
def run(
    model: str,
    device: str,
    input_tokens: int,
    output_tokens: int,
    concurrency: int,
    gpus: int | None,
    tensor_parallel: int | None,
    pipeline_parallel: int | None,
    data_parallel: int | None,
    expert_parallel: int | None,
    dtype: str,
    weights: str | None,
    kv_dtype: str | None,
    engine: str,
    memory_fraction: float,
    network: str | None,
    country: str | None,
    pue: float | None,
    as_json: bool,
) -> None:
    """Predict a language model as engines serve it: does it fit, on how many GPUs, how fast, at what cost."""
    from foretell.workflows.llm import llm

    answer = llm(
        model,
        device=device,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        concurrency=concurrency,
        gpus=gpus,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        data_parallel=data_parallel,
        expert_parallel=expert_parallel,
        dtype=dtype,
        weights=weights,
        kv_dtype=kv_dtype,
        engine=engine,
        memory_fraction=memory_fraction,
        network=network,
        country=country,
        pue=pue,
    )
    if as_json:
        click.echo(json.dumps(answer.to_dict(), indent=1, allow_nan=False))
        return
    for line in repr(answer).splitlines():
        click.echo(printable(line))
