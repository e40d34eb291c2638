"""Lab: the parts of a serving engine on a GPU: products in every precision, and attention over a cache.

    PYTHONPATH=src python -m lab.campaigns.serving_parts OUT.jsonl --seconds 120

Each part is captured as a CUDA graph and replayed; its time is the median of replays by CUDA events. A decoding step
reads its weights from memory, not from the cache: so many copies of the operands take turns that they exceed the cache
four times. Parts come in random order, so that a run that is stopped has drawn from all of them. A part that a kernel
refuses is written with its error. Lines are appended: a second run goes on where the first one stopped.

Precisions: ``bf16``, ``fp8`` (`torch._scaled_mm`, per-tensor scales), ``int8`` (`torch._int_mm`), ``int8-weights``
(`aten._weight_int8pack_mm`) and ``int4-weights`` (`aten._weight_int4pack_mm`, groups of 128); the last two keep
activations in bf16.
"""

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from foretell.units import MIB, seconds_from_ms, us

PRECISIONS = ("bf16", "fp8", "int8", "int8-weights", "int4-weights")
ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192)
# (N, K) of the products in published models, whole and split over 2, 4 and 8 GPUs
WEIGHTS = (
    (4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (1024, 8192), (10240, 8192), (8192, 8192), (57344, 8192),
    (8192, 28672), (2560, 8192), (8192, 2048), (14336, 8192), (8192, 7168), (5120, 5120), (27648, 5120), (5120, 13824),
    (3072, 3072), (16384, 3072), (3072, 8192), (2048, 2048), (11008, 2048), (2048, 5632), (896, 896), (9728, 896),
    (1536, 8960), (7168, 2048), (4096, 7168), (7168, 18432), (128256, 4096), (151936, 3584), (32000, 4096),
    (1280, 8192),
)  # fmt: skip
# (query heads, key-value heads, head size)
HEADS = (
    (32, 8, 128), (32, 32, 128), (64, 8, 128), (8, 1, 128), (16, 2, 128), (28, 4, 128), (40, 40, 128), (24, 8, 128),
    (14, 2, 64), (16, 16, 64), (12, 12, 64), (16, 8, 256), (71, 1, 64),
)  # fmt: skip
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
PROMPTS = (128, 256, 512, 1024, 2048, 4096, 8192)
_CACHE_MIB, _TIMES_CACHE, _MOST_COPIES = 50, 4, 64
_MOST_MIB = 24 * 1024
_REPLAYS = 12

Part = dict[str, Any]


def parts() -> Iterator[Part]:
    """All parts, each as the settings that a line of the result has."""
    for n, k in WEIGHTS:
        for m in ROWS:
            for precision in PRECISIONS:
                if precision == "bf16" or m <= 4096:
                    yield {"part": "product", "precision": precision, "m": m, "n": n, "k": k}
    for heads, kv_heads, size in HEADS:
        for batch in BATCHES:
            for context in CONTEXTS:
                mib = batch * context * kv_heads * size * 4 / MIB
                if mib <= _MOST_MIB / 4:
                    shape = {"heads": heads, "kv_heads": kv_heads, "head_size": size}
                    yield {"part": "decode", "precision": "bf16", "batch": batch, "context": context, **shape}
            for prompt in PROMPTS:
                if batch * prompt <= 32768:
                    shape = {"heads": heads, "kv_heads": kv_heads, "head_size": size}
                    yield {"part": "prefill", "precision": "bf16", "batch": batch, "context": prompt, **shape}


def key(part: Part) -> str:
    """What names a part: its settings, without the result."""
    return json.dumps({name: value for name, value in sorted(part.items()) if name not in ("us", "copies", "error")})


def measure(part: Part) -> Part:
    """The part with its time in microseconds, or with the error of the kernel."""
    import torch

    try:
        make = _product if part["part"] == "product" else _attention
        nbytes, build = make(part)
        copies = max(1, min(_MOST_COPIES, int(_TIMES_CACHE * _CACHE_MIB * MIB / nbytes)))
        runs = [build() for _ in range(copies)]
        for run in runs:
            run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for run in runs:
                run()
        took = _replay_ms(graph)
        return {**part, "us": us(seconds_from_ms(took)) / copies, "copies": copies}
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        torch.cuda.synchronize()
        return {**part, "error": str(error).splitlines()[0][:200]}


def _replay_ms(graph: Any) -> float:
    import torch

    for _ in range(2):
        graph.replay()
    times = []
    for _ in range(_REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return float(statistics.median(times))


def _product(part: Part) -> tuple[int, Callable[[], Callable[[], Any]]]:
    """The bytes of a product's operands, and what makes a fresh one."""
    import torch

    m, n, k, precision = part["m"], part["n"], part["k"], part["precision"]
    bits = {"bf16": 16, "fp8": 8, "int8": 8, "int8-weights": 8, "int4-weights": 4}[precision]

    def build() -> Callable[[], Any]:
        x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        if precision == "bf16":
            weight = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
            return lambda: torch.nn.functional.linear(x, weight)
        if precision == "fp8":
            x8, weight = x.to(torch.float8_e4m3fn), torch.randn(n, k, device="cuda").to(torch.float8_e4m3fn)
            scale = torch.ones((), device="cuda")
            return lambda: torch._scaled_mm(
                x8, weight.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16, use_fast_accum=True
            )
        if precision == "int4-weights":
            packed = torch.randint(0, 256, (n, k // 2), device="cuda", dtype=torch.uint8)
            weight = torch.ops.aten._convert_weight_to_int4pack(packed, 8)
            scales = torch.ones(k // 128, n, 2, device="cuda", dtype=torch.bfloat16)
            return lambda: torch.ops.aten._weight_int4pack_mm(x, weight, 128, scales)
        weight = torch.randint(-127, 127, (n, k), device="cuda", dtype=torch.int8)
        if precision == "int8":
            x8 = torch.randint(-127, 127, (m, k), device="cuda", dtype=torch.int8)
            return lambda: torch._int_mm(x8, weight.t())
        scales = torch.ones(n, device="cuda", dtype=torch.bfloat16)
        return lambda: torch.ops.aten._weight_int8pack_mm(x, weight, scales)

    return n * k * bits // 8 + m * k * 2, build


def _attention(part: Part) -> tuple[int, Callable[[], Callable[[], Any]]]:
    """The bytes of a cache, and what makes a fresh attention over it: one query for each sequence, or a prompt."""
    import torch

    batch, context, size = part["batch"], part["context"], part["head_size"]
    heads, kv_heads, is_prompt = part["heads"], part["kv_heads"], part["part"] == "prefill"

    def build() -> Callable[[], Any]:
        def tensor(count: int, length: int) -> Any:
            return torch.randn(batch, count, length, size, device="cuda", dtype=torch.bfloat16)

        query = tensor(heads, context if is_prompt else 1)
        cached = tensor(kv_heads, context), tensor(kv_heads, context)
        attend = torch.nn.functional.scaled_dot_product_attention
        return lambda: attend(query, *cached, is_causal=is_prompt, enable_gqa=heads != kv_heads)

    return batch * context * kv_heads * size * 4, build


def main(argv: list[str] | None = None) -> None:
    """Measure until the time is over or nothing is left."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=120.0)
    options = parser.parse_args(argv)
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    done = {key(json.loads(line)) for line in lines}
    left = [part for part in parts() if key(part) not in done]
    random.Random(0).shuffle(left)
    until, count = time.monotonic() + options.seconds, 0
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
