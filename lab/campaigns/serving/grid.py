"""Lab: which parts and steps of a serving engine are measured: the shapes of published models, whole and split."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

from foretell.units import MIB

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
_MOST_MIB = 16 * 1024
_RESULTS = ("us", "copies", "error", "peak_mib", "weights_mib", "cache_mib", "eager_ms", "allocated_mib")

Part = dict[str, Any]


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


def dry_parts(name: str) -> list[Part]:
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
