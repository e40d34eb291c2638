"""Lab: the parts of a serving engine on a GPU (products in every precision, attention, the rest), and whole steps.

    PYTHONPATH=src python -m lab.campaigns.serving.measure OUT.jsonl --seconds 120 [--only steps] [--dry]

Each part is captured as a CUDA graph and replayed; its time is the median of replays by CUDA events. A decoding step
reads its weights from memory, not from the cache: so many copies of the operands take turns that they exceed the cache
four times. They are cut from pools of random numbers, since making them takes longer than multiplying them. Parts come
in random order, so that a run that is stopped has drawn from all of them. A part that a kernel refuses is written with
its error. Lines are appended: a second run goes on where the first one stopped. ``--dry`` runs small ones on a CPU,
with ``TRITON_INTERPRET=1``, and times nothing that counts.

Precisions: ``bf16``, ``fp8`` (`torch._scaled_mm`, per-tensor scales), ``int8`` (`torch._int_mm`), ``int8-weights``
(`aten._weight_int8pack_mm`) and ``int4-weights`` (`aten._weight_int4pack_mm`, groups of 128); the last two keep
activations in bf16. Steps are those of `lab.campaigns.serving.engine`, with the peak of the allocator.
"""

import argparse
import gc
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from foretell.units import MIB, mib, ms, seconds_from_ms, us
from lab.campaigns.serving.grid import Part, dry_parts, key, parts, step_products, steps

_CACHE_MIB, _TIMES_CACHE, _MOST_COPIES = 50, 4, 64
_REPLAYS, _LONG_MS, _FEW_REPLAYS = 12, 40.0, 4
_MOST_STEP_CACHE_MIB = 40 * 1024
Build = Callable[[], Callable[[], Any]]


class Pools:
    """Random numbers on the device, cut into operands that lie at different places."""

    def __init__(self, device: str, size_bytes: int) -> None:
        import torch

        self.device, self.size, self.at = device, size_bytes, 0
        self.bf16 = torch.empty(size_bytes // 2, device=device, dtype=torch.bfloat16).normal_()
        self.fp8 = self.bf16[: size_bytes // 4].to(torch.float8_e4m3fn).repeat(4)
        self.int8 = torch.randint(-127, 127, (size_bytes,), device=device, dtype=torch.int8)

    def take(self, dtype: str, *shape: int) -> Any:
        """A tensor of this shape from the next free place; the pool starts again when it is at its end."""
        import torch

        pool = {"bf16": self.bf16, "fp8": self.fp8, "int8": self.int8, "int32": self.int8.view(torch.int32)}[dtype]
        count, item = 1, pool.element_size()
        for size in shape:
            count *= size
        if count * item > self.size:
            raise ValueError(f"{count * item} bytes are more than a pool of {self.size}")
        if self.at + count * item > self.size:
            self.at = 0
        start = self.at // item
        self.at += -(-count * item // 512) * 512
        return pool[start : start + count].view(*shape)


def measure(part: Part, pools: Pools) -> Part:
    """The part with its time in microseconds, or with the error of the kernel."""
    import torch

    try:
        nbytes, build = _BUILDERS[part["part"]](part, pools)
        copies = max(1, min(_MOST_COPIES, int(_TIMES_CACHE * _CACHE_MIB * MIB / nbytes)))
        runs = [build() for _ in range(copies if pools.device == "cuda" else 1)]
        took = captured_ms(runs, pools.device)
        return {**part, "us": us(seconds_from_ms(took)) / len(runs), "copies": len(runs)}
    except Exception as error:  # noqa: BLE001 - a compiler of kernels may raise anything; the line says what
        if pools.device == "cuda":
            torch.cuda.synchronize()
        return {**part, "error": str(error).splitlines()[0][:200]}


def captured_ms(runs: list[Callable[[], Any]], device: str) -> float:
    """The time of all runs one after another, by replays of their capture."""
    import torch

    for run in runs:
        run()
    if device == "cpu":  # a dry run: nothing is captured
        return 0.0
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for run in runs:
            run()
    return _replay_ms(graph)


def _replay_ms(graph: Any) -> float:
    import torch

    def times(count: int) -> list[float]:
        events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)]
        for start, end in events:
            start.record()
            graph.replay()
            end.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in events]

    graph.replay()
    return statistics.median(times(_REPLAYS if times(1)[0] < _LONG_MS else _FEW_REPLAYS))


def _product(part: Part, pools: Pools) -> tuple[int, Build]:
    """The bytes of a product's operands, and what makes a fresh one."""
    import torch

    m, n, k, precision = part["m"], part["n"], part["k"], part["precision"]
    bits = {"bf16": 16, "fp8": 8, "int8": 8, "int8-weights": 8, "int4-weights": 4}[precision]

    def build() -> Callable[[], Any]:
        if precision == "bf16":
            x, weight = pools.take("bf16", m, k), pools.take("bf16", n, k)
            return lambda: torch.nn.functional.linear(x, weight)
        if precision == "fp8":
            x8, weight = pools.take("fp8", m, k), pools.take("fp8", n, k)
            scale = torch.ones((), device=pools.device)
            return lambda: torch._scaled_mm(
                x8, weight.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16, use_fast_accum=True
            )
        if precision == "int8":
            x8, weight = pools.take("int8", m, k), pools.take("int8", n, k)
            return lambda: torch._int_mm(x8, weight.t())
        x = pools.take("bf16", m, k)
        if precision == "int4-weights":
            # as _convert_weight_to_int4pack lays it out with 8 inner tiles
            weight = pools.take("int32", n // 8, k // 128, 32, 4)
            scales = torch.ones(k // 128, n, 2, device=pools.device, dtype=torch.bfloat16)
            return lambda: torch.ops.aten._weight_int4pack_mm(x, weight, 128, scales)
        weight = pools.take("int8", n, k)
        scales = torch.ones(n, device=pools.device, dtype=torch.bfloat16)
        return lambda: torch.ops.aten._weight_int8pack_mm(x, weight, scales)

    return n * k * bits // 8 + m * k * 2, build


def _attention(part: Part, pools: Pools) -> tuple[int, Build]:
    """The bytes of a cache, and what makes a fresh attention over it: one query for each sequence, or a prompt."""
    import torch

    batch, context, size = part["batch"], part["context"], part["head_size"]
    heads, kv_heads, is_prompt = part["heads"], part["kv_heads"], part["part"] == "prefill"

    def build() -> Callable[[], Any]:
        query = pools.take("bf16", batch, heads, context if is_prompt else 1, size)
        cached = [pools.take("bf16", batch, kv_heads, context, size) for _ in range(2)]
        attend = torch.nn.functional.scaled_dot_product_attention
        return lambda: attend(query, *cached, is_causal=is_prompt, enable_gqa=heads != kv_heads)

    return batch * context * kv_heads * size * 4, build


def _paged_decode(part: Part, pools: Pools) -> tuple[int, Build]:
    """The same over pages in random order."""
    import torch

    from lab.campaigns.serving import kernels

    batch, context, size = part["batch"], part["context"], part["head_size"]
    heads, kv_heads, item = part["heads"], part["kv_heads"], 1 if part["precision"] == "fp8" else 2
    sms = torch.cuda.get_device_properties(0).multi_processor_count if pools.device == "cuda" else 2
    pages = torch.randperm(batch * context // kernels.PAGE, device=pools.device).view(batch, -1).to(torch.int32)
    lengths = torch.full((batch,), context, device=pools.device, dtype=torch.int32)
    splits = kernels.splits_of(batch, kv_heads, context, sms)

    def build() -> Callable[[], Any]:
        query = pools.take("bf16", batch, heads, size)
        keys, values = (pools.take(part["precision"], batch * context, kv_heads, size) for _ in range(2))
        return lambda: kernels.paged_decode(query, (keys, values), pages, lengths, kv_heads, splits)

    return batch * context * kv_heads * size * 2 * item, build


def _experts(part: Part, pools: Pools) -> tuple[int, Build]:
    """Experts that a router chooses; inputs are drawn anew, since large ones would let all tokens choose the same."""
    import torch

    from lab.campaigns.serving.engine import Mixture

    hidden, experts, top, inner = (part[name] for name in ("hidden", "experts", "top", "inner"))
    active = min(experts, part["tokens"] * top)
    x = torch.randn(part["tokens"], hidden, device=pools.device, dtype=torch.bfloat16)

    def build() -> Callable[[], Any]:
        mixture = Mixture(hidden, (experts, top, inner), pools.device)
        return lambda: mixture(x)

    # a mixture is larger than the cache as a whole, so that a few copies do
    return max(active * 3 * hidden * inner * 2, 64 * MIB), build


def _small(part: Part, pools: Pools) -> tuple[int, Build]:
    """A norm with its residual, a gated activation, a rotary embedding into the cache, a cast, or sampling.

    In fp8 their result is (of a rotary embedding: the cache). What is written lies outside of the pools: a residual
    that grows from replay to replay would be the next part's input.
    """
    import torch

    from lab.campaigns.serving import kernels
    from lab.campaigns.serving.engine import sample

    tokens, name = part["tokens"], part["part"]
    written = torch.float8_e4m3fn if part["precision"] == "fp8" else torch.bfloat16
    if name == "rotate":
        heads, kv_heads, size = part["heads"], part["kv_heads"], part["head_size"]
        width = (heads + 2 * kv_heads) * size
        slots = torch.randperm(tokens, device=pools.device)
        angles = torch.rand(tokens, size, device=pools.device)
    else:
        width = part["vocabulary"] if name == "sample" else part["width"]

    def build() -> Callable[[], Any]:
        if name == "norm":
            x, weight = pools.take("bf16", tokens, width), pools.take("bf16", width)
            residual, out = torch.zeros_like(x), torch.empty(x.shape, device=pools.device, dtype=written)
            return lambda: kernels.add_norm(x, residual, weight, out)
        if name == "gate":
            both = pools.take("bf16", tokens, 2 * width)
            return lambda: kernels.gate(both, written)
        if name == "cast":
            x = pools.take("bf16", tokens, width)
            return lambda: kernels.cast(x, written)
        if name == "sample":
            logits = pools.take("bf16", tokens, width)
            return lambda: sample(logits)
        qkv = pools.take("bf16", tokens, width)
        keys, values = (torch.empty(tokens, kv_heads, size, device=pools.device, dtype=written) for _ in range(2))
        return lambda: kernels.rotate(qkv, angles, slots, (keys, values), heads, kv_heads)

    return tokens * width * 2, build


_BUILDERS: dict[str, Callable[[Part, Pools], tuple[int, Build]]] = {
    "product": _product, "decode": _attention, "prefill": _attention, "paged-decode": _paged_decode,
    "experts": _experts, "norm": _small, "gate": _small, "rotate": _small, "sample": _small,
    "cast": _small,
}  # fmt: skip


def measure_step(part: Part, model: Any, weights_mib: float, before_mib: float) -> Part:
    """A whole step with its time, and the allocator's peak while it runs eagerly."""
    import torch

    from lab.campaigns.serving.engine import decode_step, prefill_step

    on_gpu = model.device == "cuda"
    try:
        allocated = torch.cuda.memory_allocated if on_gpu else lambda: 0
        empty = mib(allocated())
        if "prompt" in part:
            run, caches = prefill_step(model, part["batch"], part["prompt"])
        else:
            kv_dtype = torch.float8_e4m3fn if part["kv"] == "fp8" else torch.bfloat16
            run, caches = decode_step(model, part["batch"], part["context"], part["attention"], kv_dtype)
        cache_mib = mib(sum(one.numel() * one.element_size() for pair in caches for one in pair))
        run()
        result = {"weights_mib": weights_mib, "cache_mib": cache_mib}
        if on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            began = time.perf_counter()
            run()
            torch.cuda.synchronize()
            result["eager_ms"] = ms(time.perf_counter() - began)
            result["peak_mib"] = mib(torch.cuda.max_memory_allocated()) - before_mib
        result["us"] = us(seconds_from_ms(captured_ms([run], model.device)))
        return {**part, **result, "allocated_mib": empty - before_mib}
    except Exception as error:  # noqa: BLE001 - a compiler of kernels may raise anything; the line says what
        if on_gpu:
            torch.cuda.synchronize()
        return {**part, "error": str(error).splitlines()[0][:200]}


def _fits(part: Part) -> bool:
    """Whether the caches of a step fit the memory that they may take."""
    from lab.campaigns.serving.engine import SHAPES

    shape = SHAPES[part["model"]]
    tokens = part["batch"] * part.get("context", part.get("prompt", 0))
    size = shape.layers * tokens * shape.kv_heads * shape.head_size * 4
    return bool(size <= _MOST_STEP_CACHE_MIB * MIB)


def run_steps(left: list[Part], file: Any, until: float, device: str) -> int:
    """Measure steps, the same time for each model and precision; each model is made once."""
    import torch

    from lab.campaigns.serving.engine import SHAPES, Model

    kinds = sorted({(part["model"], part["precision"]) for part in left}, key=lambda kind: kind[1])
    count = 0
    for number, (name, precision) in enumerate(kinds):
        own = [part for part in left if (part["model"], part["precision"]) == (name, precision) and _fits(part)]
        random.Random(number).shuffle(own)
        # there are few steps of prompts, and caches in fp8 were measured least
        own.sort(key=lambda part: "prompt" not in part and part["kv"] != "fp8")
        stop = time.monotonic() + (until - time.monotonic()) / (len(kinds) - number)
        if device == "cuda":
            gc.collect()
            torch.cuda.empty_cache()
            torch._C._cuda_clearCublasWorkspaces()
        before = mib(torch.cuda.memory_allocated()) if device == "cuda" else 0.0
        try:
            model = Model(SHAPES[name], precision, device)
        except (RuntimeError, NotImplementedError) as error:
            file.write(json.dumps({**own[0], "error": str(error).splitlines()[0][:200]}) + "\n")
            continue
        weights = mib(torch.cuda.memory_allocated()) - before if device == "cuda" else 0.0
        for part in own:
            if time.monotonic() > stop:
                break
            file.write(json.dumps(measure_step(part, model, weights, before)) + "\n")
            file.flush()
            count += 1
            gc.collect()
            if device == "cuda":
                torch.cuda.empty_cache()
        del model
    return count


def main(argv: list[str] | None = None) -> None:
    """Measure until the time is over or nothing is left."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--only", choices=("parts", "steps", "step-products"))
    parser.add_argument("--kinds", default="", help="only these parts, separated by commas")
    parser.add_argument("--known", type=Path, action="append", default=[], help="files whose parts are not repeated")
    parser.add_argument("--again", default="", help="these parts although they are known, separated by commas")
    parser.add_argument("--dry", action="store_true")
    options = parser.parse_args(argv)
    lines = [json.loads(line) for file in (options.out, *options.known) if file.exists() for line in read_lines(file)]
    again = options.again.split(",")
    # what failed is tried again
    done = {key(line) for line in lines if "error" not in line and line["part"] not in again}
    listed = {"parts": parts, "steps": steps, "step-products": step_products}
    device, until = ("cpu" if options.dry else "cuda"), time.monotonic() + options.seconds
    with options.out.open("a") as file:
        for name in ("parts", "steps") if options.only is None else (options.only,):
            left = [part for part in (dry_parts(name) if options.dry else listed[name]()) if key(part) not in done]
            kinds = [kind for kind in options.kinds.split(",") if kind]
            left = [part for part in left if not kinds or part["part"] in kinds]
            random.Random(0).shuffle(left)
            if name == "steps":
                count = run_steps(left, file, until, device)
            else:
                count = _run_parts(left, file, until, Pools(device, 2**18 if options.dry else 5 * 2**29))
            sys.stdout.write(f"{count} of {len(left)} {name} measured\n")


def _run_parts(left: list[Part], file: Any, until: float, pools: Pools) -> int:
    """Parts in turns, one of each kind and precision after another, so that no kind takes all the time."""
    turns: dict[tuple[str, str], int] = {}
    ordered = []
    for part in left:
        kind = (part["part"], part["precision"])
        turns[kind] = turns.get(kind, 0) + 1
        # products are asked for more often than anything else
        ordered.append((turns[kind] / (3 if kind[0] == "product" and kind[1] != "int8-weights" else 1), part))
    ordered.sort(key=lambda pair: pair[0])
    for count, (_, part) in enumerate(ordered):
        if time.monotonic() > until:
            return count
        file.write(json.dumps(measure(part, pools)) + "\n")
        file.flush()
    return len(ordered)


def read_lines(file: Path) -> list[str]:
    """The lines of a file, compressed or not."""
    import gzip

    return (gzip.decompress(file.read_bytes()).decode() if file.suffix == ".gz" else file.read_text()).splitlines()


if __name__ == "__main__":
    main()
