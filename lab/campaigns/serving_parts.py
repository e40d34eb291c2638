"""Lab: the parts of a serving engine on a GPU (products in every precision, attention, the rest), and whole steps.

    PYTHONPATH=src python -m lab.campaigns.serving_parts OUT.jsonl --seconds 120 [--only steps] [--dry]

Each part is captured as a CUDA graph and replayed; its time is the median of replays by CUDA events. A decoding step
reads its weights from memory, not from the cache: so many copies of the operands take turns that they exceed the cache
four times. They are cut from pools of random numbers, since making them takes longer than multiplying them. Parts come
in random order, so that a run that is stopped has drawn from all of them. A part that a kernel refuses is written with
its error. Lines are appended: a second run goes on where the first one stopped. ``--dry`` runs small ones on a CPU,
with ``TRITON_INTERPRET=1``, and times nothing that counts.

Precisions: ``bf16``, ``fp8`` (`torch._scaled_mm`, per-tensor scales), ``int8`` (`torch._int_mm`), ``int8-weights``
(`aten._weight_int8pack_mm`) and ``int4-weights`` (`aten._weight_int4pack_mm`, groups of 128); the last two keep
activations in bf16. Steps are those of `lab.campaigns.serving_engine`, with the peak of the allocator.
"""

import argparse
import gc
import itertools
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from foretell.units import MIB, mib, ms, seconds_from_ms, us

PRECISIONS = ("bf16", "fp8", "int8", "int8-weights", "int4-weights")
ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192)
# naive kernels of torch: more rows only take time
_MOST_ROWS = {"bf16": 8192, "fp8": 8192, "int8": 4096, "int8-weights": 32, "int4-weights": 256}
_LEAST_ROWS = {"int8": 17}  # torch._int_mm refuses fewer
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
# (hidden size, experts, chosen, inner size) of published mixtures, whole and split
MIXTURES = (
    (4096, 8, 2, 14336), (2048, 60, 4, 1408), (2048, 128, 8, 768), (4096, 128, 8, 1536), (7168, 64, 8, 2048),
    (4096, 8, 2, 7168), (2048, 64, 6, 1408), (2048, 64, 8, 1024), (4096, 128, 8, 384), (4096, 16, 2, 6400),
)  # fmt: skip
WIDTHS = (896, 2048, 3072, 4096, 5120, 8192)
VOCABULARIES = (32000, 50304, 65024, 100352, 128256, 152064, 201088, 256000)
STEP_MODELS = (
    "meta-llama/Llama-3.1-8B", "Qwen/Qwen2.5-7B", "mistralai/Mistral-7B-Instruct-v0.3", "meta-llama/Llama-2-7b-hf",
    "meta-llama/Llama-3.2-3B", "Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-14B", "Qwen/Qwen3-30B-A3B",
)  # fmt: skip
STEP_BATCHES, STEP_CONTEXTS = (1, 3, 8, 16, 40, 64, 128), (128, 500, 1024, 3000, 8192)
STEP_PROMPTS = ((1, 128), (1, 512), (1, 1500), (1, 4096), (1, 8192), (4, 700), (8, 1024))
_CACHE_MIB, _TIMES_CACHE, _MOST_COPIES = 50, 4, 64
_MOST_MIB = 16 * 1024
_MOST_STEP_CACHE_MIB = 40 * 1024
_REPLAYS, _LONG_MS, _FEW_REPLAYS = 12, 40.0, 4
_RESULTS = ("us", "copies", "error", "peak_mib", "weights_mib", "cache_mib", "eager_ms", "allocated_mib")

Part = dict[str, Any]
Build = Callable[[], Callable[[], Any]]


def parts() -> Iterator[Part]:
    """All parts, each as the settings that a line of the result has."""
    for n, k in WEIGHTS:
        for m in ROWS:
            for precision in PRECISIONS:
                if _LEAST_ROWS.get(precision, 1) <= m <= _MOST_ROWS[precision]:
                    yield {"part": "product", "precision": precision, "m": m, "n": n, "k": k}
    yield from _attentions()
    for width, experts, top, inner in MIXTURES:
        for tokens in ROWS:
            shape = {"hidden": width, "experts": experts, "top": top, "inner": inner}
            yield {"part": "experts", "precision": "bf16", "tokens": tokens, **shape}
    for tokens in ROWS:
        for precision in ("bf16", "fp8"):
            for width in WIDTHS:
                yield {"part": "norm", "precision": precision, "tokens": tokens, "width": width}
                yield {"part": "gate", "precision": precision, "tokens": tokens, "width": 3 * width}
                if precision == "fp8":
                    yield {"part": "cast", "precision": precision, "tokens": tokens, "width": width}
            for heads, kv_heads, size in HEADS:
                shape = {"heads": heads, "kv_heads": kv_heads, "head_size": size}
                yield {"part": "rotate", "precision": precision, "tokens": tokens, **shape}
        if tokens <= 512:
            for vocabulary in VOCABULARIES:
                yield {"part": "sample", "precision": "bf16", "tokens": tokens, "vocabulary": vocabulary}


def _attentions() -> Iterator[Part]:
    for heads, kv_heads, size in HEADS:
        shape = {"heads": heads, "kv_heads": kv_heads, "head_size": size}
        for batch in BATCHES:
            for context in CONTEXTS:
                if batch * context * kv_heads * size * 4 / MIB <= _MOST_MIB / 4:
                    yield {"part": "decode", "precision": "bf16", "batch": batch, "context": context, **shape}
                    if heads <= 16 * kv_heads:
                        for kv in ("bf16", "fp8"):
                            yield {"part": "paged-decode", "precision": kv, "batch": batch, "context": context, **shape}
            for prompt in PROMPTS:
                if batch * prompt <= 32768:
                    yield {"part": "prefill", "precision": "bf16", "batch": batch, "context": prompt, **shape}


def steps() -> Iterator[Part]:
    """Whole steps, model by model: a model is made once."""
    for model in STEP_MODELS:
        for precision in ("bf16", "fp8", "int4-weights"):
            is_mixture = model.startswith("Qwen/Qwen3")
            if precision != "bf16" and (is_mixture or "0.5B" in model):
                continue
            named = {"part": "step", "model": model, "precision": precision}
            for batch in STEP_BATCHES:
                for context in STEP_CONTEXTS:
                    if precision == "int4-weights" and batch > 16:
                        continue
                    for attention, kv in (("sdpa", "bf16"), ("paged", "bf16"), ("paged", "fp8")):
                        yield {**named, "batch": batch, "context": context, "attention": attention, "kv": kv}
            if precision != "int4-weights":
                for batch, prompt in STEP_PROMPTS:
                    yield {**named, "batch": batch, "prompt": prompt, "attention": "sdpa", "kv": "bf16"}


def step_products() -> Iterator[Part]:
    """The products of the steps of dense models at their own shapes.

    They tell what lies between products, and teach nothing: steps judge shapes that were not seen.
    """
    from foretell.predictors.llm.architecture import Dense, GroupedAttention, load_architecture

    listed: dict[str, Part] = {}
    for model in (load_architecture(name) for name in STEP_MODELS):
        attention, dense, hidden = model.groups[0].attention, model.groups[0].feed_forward, model.hidden
        if not isinstance(attention, GroupedAttention) or not isinstance(dense, Dense):
            continue
        queries, keys = (heads * attention.head_size for heads in (attention.heads, attention.kv_heads))
        sizes = ((queries + 2 * keys, hidden), (hidden, queries), (2 * dense.inner, hidden), (hidden, dense.inner))
        for (n, k), m, precision in itertools.product(sizes, STEP_BATCHES, ("bf16", "fp8", "int4-weights")):
            if precision == "bf16" or (hidden > 1024 and (precision == "fp8" or m <= 16)):
                part = {"part": "product", "precision": precision, "m": m, "n": n, "k": k}
                listed.setdefault(key(part), part)
    yield from listed.values()


def key(part: Part) -> str:
    """What names a part: its settings, without the result."""
    return json.dumps({name: value for name, value in sorted(part.items()) if name not in _RESULTS})


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
        took = _captured_ms(runs, pools.device)
        return {**part, "us": us(seconds_from_ms(took)) / len(runs), "copies": len(runs)}
    except Exception as error:  # noqa: BLE001 - a compiler of kernels may raise anything; the line says what
        if pools.device == "cuda":
            torch.cuda.synchronize()
        return {**part, "error": str(error).splitlines()[0][:200]}


def _captured_ms(runs: list[Callable[[], Any]], device: str) -> float:
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

    from lab.campaigns import serving_kernels as kernels

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

    from lab.campaigns.serving_engine import Mixture

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

    from lab.campaigns import serving_kernels as kernels
    from lab.campaigns.serving_engine import sample

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

    from lab.campaigns.serving_engine import decode_step, prefill_step

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
        result["us"] = us(seconds_from_ms(_captured_ms([run], model.device)))
        return {**part, **result, "allocated_mib": empty - before_mib}
    except Exception as error:  # noqa: BLE001 - a compiler of kernels may raise anything; the line says what
        if on_gpu:
            torch.cuda.synchronize()
        return {**part, "error": str(error).splitlines()[0][:200]}


def _fits(part: Part) -> bool:
    """Whether the caches of a step fit the memory that they may take."""
    from lab.campaigns.serving_engine import SHAPES

    shape = SHAPES[part["model"]]
    tokens = part["batch"] * part.get("context", part.get("prompt", 0))
    size = shape.layers * tokens * shape.kv_heads * shape.head_size * 4
    return bool(size <= _MOST_STEP_CACHE_MIB * MIB)


def run_steps(left: list[Part], file: Any, until: float, device: str) -> int:
    """Measure steps, the same time for each model and precision; each model is made once."""
    import torch

    from lab.campaigns.serving_engine import SHAPES, Model

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
            left = [part for part in (_dry(name) if options.dry else listed[name]()) if key(part) not in done]
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


def _dry(name: str) -> list[Part]:
    """Small parts of every kind."""
    if name == "steps":
        named = [{"part": "step", "model": model, "precision": "bf16"} for model in ("tiny", "tiny-experts")]
        decoded = [
            {**one, "batch": 3, "context": 40, "attention": attention, "kv": kv}
            for one in named
            for attention, kv in (("sdpa", "bf16"), ("paged", "bf16"), ("paged", "fp8"))
        ]
        return decoded + [{**one, "batch": 2, "prompt": 24, "attention": "sdpa", "kv": "bf16"} for one in named]
    heads = {"heads": 4, "kv_heads": 2, "head_size": 32}
    made: list[Part] = [
        {"part": "product", "precision": precision, "m": 32, "n": 64, "k": 128} for precision in PRECISIONS
    ]
    made += [{"part": kind, "precision": "bf16", "batch": 2, "context": 32, **heads} for kind in ("decode", "prefill")]
    made += [{"part": "paged-decode", "precision": kv, "batch": 2, "context": 1024, **heads} for kv in ("bf16", "fp8")]
    made += [{"part": kind, "precision": "bf16", "tokens": 3, "width": 96} for kind in ("norm", "gate")]
    made += [{"part": kind, "precision": "fp8", "tokens": 3, "width": 96} for kind in ("norm", "gate", "cast")]
    made += [{"part": "rotate", "precision": cache, "tokens": 3, **heads} for cache in ("bf16", "fp8")]
    made.append({"part": "sample", "precision": "bf16", "tokens": 3, "vocabulary": 64})
    made.append(
        {"part": "experts", "precision": "bf16", "tokens": 5, "hidden": 64, "experts": 4, "top": 2, "inner": 32}
    )
    return made


if __name__ == "__main__":
    main()
