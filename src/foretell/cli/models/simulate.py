"""Cli: ``foretell simulate``."""

import json
from pathlib import Path

import click

from foretell.cli import options
from foretell.rendering.terminal.printable import printable


@click.command()
@click.argument(
    "model", metavar="MODEL", help="meta-llama/Llama-3.1-8B or another name · config.json · a folder with one"
)
@click.option("--device", "-d", default="h200", help="A GPU, or a device file; see: foretell devices")
@click.option("--requests-per-s", "-r", type=float, help="Arrivals a second, at random.")
@click.option("--concurrency", "-c", type=int, help="Instead of a rate: so many requests are always in flight.")
@click.option("--trace", type=options.PATH, help="Azure's LLM inference trace (Parquet): lengths and times.")
@click.option("--input-tokens", type=int, default=1024, help="Tokens of a prompt, without a trace.")
@click.option("--output-tokens", type=int, default=256, help="Tokens of an answer, without a trace.")
@click.option("--requests", type=int, default=2000, help="How many are simulated.")
@click.option("--gpus", type=int, help="How many GPUs [the least that hold the model].")
@click.option("--tensor-parallel", type=int, help="GPUs that share each layer.")
@click.option("--pipeline-parallel", type=int, help="Stages of layers.")
@click.option("--data-parallel", type=int, help="Replicas; each is a server.")
@click.option("--expert-parallel", type=int, help="GPUs over which the experts of a mixture are spread.")
@click.option("--prefill-servers", type=int, default=0, help="Replicas beside these that only compute prompts.")
@click.option("--dtype", default="bf16", help="bf16 or fp16.")
@click.option("--weights", help="fp8, int8, int4, or fp4 on Blackwell [those of the checkpoint].")
@click.option("--kv-dtype", help="bf16 or fp8, of the cache.")
@click.option("--engine", default="vllm", help="vllm, sglang, trtllm, or paged: their mean.")
@click.option("--memory-fraction", type=float, default=0.9, help="The share of a GPU's memory that the engine takes.")
@click.option("--network", help="Between nodes of eight GPUs: infiniband-ndr, -hdr, -edr, or GB/s of a GPU.")
@click.option("--prefix-share", type=float, default=0.0, help="The share of every prompt that is cached for all.")
@click.option("--ttft-limit-ms", type=float, help="The longest time to a first token that counts as good.")
@click.option("--tpot-limit-ms", type=float, help="The longest mean time between tokens that counts as good.")
@click.option("--seed", type=int, default=0, help="Of the arrivals.")
@options.as_json
def run(
    model: str,
    device: str,
    requests_per_s: float | None,
    concurrency: int | None,
    trace: Path | None,
    input_tokens: int,
    output_tokens: int,
    requests: int,
    gpus: int | None,
    tensor_parallel: int | None,
    pipeline_parallel: int | None,
    data_parallel: int | None,
    expert_parallel: int | None,
    prefill_servers: int,
    dtype: str,
    weights: str | None,
    kv_dtype: str | None,
    engine: str,
    memory_fraction: float,
    network: str | None,
    prefix_share: float,
    ttft_limit_ms: float | None,
    tpot_limit_ms: float | None,
    seed: int,
    as_json: bool,
) -> None:
    """Follow requests through servers of a language model: percentiles of both times, throughput, goodput."""
    from foretell.workflows.serving.simulate import simulate

    answer = simulate(
        model,
        device=device,
        requests_per_s=requests_per_s,
        concurrency=concurrency,
        trace=trace,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        requests=requests,
        gpus=gpus,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        data_parallel=data_parallel,
        expert_parallel=expert_parallel,
        prefill_servers=prefill_servers,
        dtype=dtype,
        weights=weights,
        kv_dtype=kv_dtype,
        engine=engine,
        memory_fraction=memory_fraction,
        network=network,
        prefix_share=prefix_share,
        ttft_limit_ms=ttft_limit_ms,
        tpot_limit_ms=tpot_limit_ms,
        seed=seed,
    )
    if as_json:
        click.echo(json.dumps(answer.to_dict(), indent=1, allow_nan=False))
        return
    for line in repr(answer).splitlines():
        click.echo(printable(line))
