"""Lab: kernels of linear attention (the gated delta rule of Qwen3-Next and Qwen3.5) on a GPU.

    PYTHONPATH=src:out/packages python3 -m lab.campaigns.serving.linear_parts OUT.jsonl --seconds 35

The kernels are those of flash-linear-attention (fla-core, MIT), of which vLLM and SGLang carry a copy: chunks of 64
tokens for prompts, one recurrent kernel for a token of each request, and the short convolution before both. Triton
compiles them for each number of heads, so that a process for each compiles first, all at once; of the settings that
fla would try only ``_TRIED`` are (two took longer than 20 s to compile).
"""

import argparse
import json
import multiprocessing
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from foretell.units import seconds_from_ms, us
from lab.campaigns.serving.grid import Part
from lab.campaigns.serving.measure import captured_ms

# (key heads, value heads) of Qwen3-Next and Qwen3.5, whole and split over 2, 4 and 8 GPUs
HEADS = ((16, 32), (8, 32), (4, 16), (2, 8))
SIZE, KERNEL = 128, 4
TOKENS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
SEQUENCES = (1, 2, 4, 8)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_TRIED = 1
_COPIES = 8


def parts() -> Iterator[Part]:
    """Prompts (so many sequences of equal length) and tokens, for each number of heads."""
    for keys, values in HEADS:
        shape = {"precision": "bf16", "key_heads": keys, "value_heads": values, "head_size": SIZE}
        for kind in ("delta", "convolution"):
            for tokens in TOKENS:
                for sequences in SEQUENCES:
                    if tokens // sequences >= 64:
                        yield {"part": f"{kind}-prompt", **shape, "batch": sequences, "context": tokens // sequences}
            for batch in BATCHES:
                yield {"part": f"{kind}-token", **shape, "batch": batch, "context": 1}


def _few_settings() -> None:
    """Let Triton's autotuner try only a few settings of each kernel: compiling all takes minutes."""
    from triton.runtime import autotuner

    original = autotuner.Autotuner.__init__

    def with_few(self: Any, fn: Any, arg_names: Any, configs: Any, *rest: Any, **named: Any) -> None:
        count = len(configs or ())
        chosen = [configs[(2 * at + 1) * count // (2 * _TRIED)] for at in range(_TRIED)] if count > _TRIED else configs
        original(self, fn, arg_names, chosen, *rest, **named)

    autotuner.Autotuner.__init__ = with_few


def build(part: Part, device: str = "cuda") -> Callable[[], Any]:
    """One run of a part, with operands of its own."""
    import torch
    from fla.modules.causal_conv1d.ops import causal_conv1d_fwd, causal_conv1d_update
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule

    batch, length, keys, values = (part[name] for name in ("batch", "context", "key_heads", "value_heads"))
    kind, mode = part["part"].split("-")
    options = {"device": device, "dtype": torch.bfloat16}
    width = (2 * keys + values) * SIZE
    if kind == "convolution":
        x, weight = torch.randn(batch, length, width, **options), torch.randn(width, KERNEL, **options)
        if mode == "prompt":
            return lambda: causal_conv1d_fwd(x, weight, None, None, activation="silu")
        state = torch.randn(batch, width, KERNEL, **options)
        return lambda: causal_conv1d_update(x, state, weight=weight, activation="silu")
    q, k = (torch.randn(batch, length, keys, SIZE, **options) for _ in range(2))
    v = torch.randn(batch, length, values, SIZE, **options)
    g = -torch.rand(batch, length, values, device=device)
    beta = torch.rand(batch, length, values, **options)
    state = torch.randn(batch, values, SIZE, SIZE, device=device)
    rule = chunk_gated_delta_rule if mode == "prompt" else fused_recurrent_gated_delta_rule
    return lambda: rule(
        q, k, v, g=g, beta=beta, initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True
    )


def measure(part: Part) -> Part:
    """The part with its time in microseconds, or with an error."""
    import torch

    try:
        # enough copies that the states of a small batch do not stay in the cache
        copies = 1 if part["part"].endswith("prompt") and part["context"] * part["batch"] > 1024 else _COPIES
        with torch.inference_mode():
            runs = [build(part) for _ in range(copies)]
            took = captured_ms(runs, "cuda")
        return {**part, "us": us(seconds_from_ms(took)) / copies, "copies": copies}
    except Exception as error:  # noqa: BLE001 - a compiler of kernels may raise anything; the line says what
        torch.cuda.synchronize()
        return {**part, "error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}


def _compile(heads: tuple[int, int]) -> str:
    """Run the smallest part of each kind, so that Triton's cache on disk has its kernels."""
    import torch

    _few_settings()
    shape = {"precision": "bf16", "key_heads": heads[0], "value_heads": heads[1], "head_size": SIZE}
    kinds = (("delta-prompt", 1024), ("delta-token", 1), ("convolution-prompt", 1024), ("convolution-token", 1))
    failed = ""
    for kind, context in kinds:
        try:
            build({"part": kind, **shape, "batch": 1, "context": context})()
            torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001 - as above
            failed += f"{heads} {kind}: {type(error).__name__}: {str(error).splitlines()[0][:160]}\n"
    return failed


def main(argv: list[str] | None = None) -> None:
    """Compile, then measure until the time is over or nothing is left."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=35.0)
    options = parser.parse_args(argv)
    until = time.monotonic() + options.seconds
    with multiprocessing.get_context("spawn").Pool(len(HEADS)) as pool:
        waiting = pool.map_async(_compile, HEADS, chunksize=1)
        try:
            sys.stdout.write("".join(waiting.get(options.seconds * 0.7)))
        except multiprocessing.TimeoutError:
            sys.stdout.write("compiling took too long: what is compiled is measured\n")
    _few_settings()
    left = list(parts())
    random.Random(0).shuffle(left)
    count = 0
    with options.out.open("a") as file:
        for part in left:
            if time.monotonic() > until:
                break
            file.write(json.dumps(measure(part)) + "\n")
            file.flush()
            count += 1
    sys.stdout.write(f"{count} of {len(left)} parts measured\n")


if __name__ == "__main__":
    main()
