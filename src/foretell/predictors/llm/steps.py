"""Predictors: how long one step of a serving engine takes, put together from the times of its kernels.

A step runs some tokens through all layers: one token of every request that generates, and chunks of prompts. Products,
experts, norms and exchanges between GPUs see all tokens together; attention sees each request with its own context.
So a step is the sum of four functions, each tabulated once and interpolated in logarithms: of all tokens, of the rows
of the output head, of the requests that generate with their mean context, and of a prompt's tokens with those before.
Layers are taken to run one kernel after another, as under CUDA graphs; what the engine's host adds to each step is a
constant (`foretell.predictors.llm.engines`).
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretell.predictors.llm.architecture import (
    Dense,
    GroupedAttention,
    LatentAttention,
    Layers,
    LinearAttention,
)
from foretell.predictors.llm.collectives import Kind, Library, collective_time, fabric_of
from foretell.predictors.llm.deployment import Deployment
from foretell.predictors.llm.kernels import LAUNCH_US, POWER_LAW_1_01, SMALL, SMALL_BYTES, TORCH, TORCH_PAGED, Kernels
from foretell.units import GIGA, MEGA, TERA, seconds_from_us, us

Array = NDArray[np.float64]
# share of the bandwidth that fused elementwise kernels reach: docs/lab/0002-roofline.md
_ELEMENTWISE_SHARE = 0.8
# the share of the peak that chunked kernels of a delta rule are taken to reach; they were not measured
_LINEAR_SHARE = 0.25
_LINEAR_KERNELS = 6
_LIBRARIES: dict[str, Library] = {"vllm": "vllm", "sglang": "sglang", "trtllm": "trtllm"}
_BESIDE = 256  # VLLM_SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD; SGLang fuses it, TensorRT-LLM uses a second stream
# from 2^8 to 2^10 tokens; the median of 11 steps of dense models on an H200, docs/lab/0046-steps.md
_THROTTLED, _THROTTLED_FROM = 0.08, 8
_TOKENS = np.unique(np.round(np.geomspace(1, 32768, 61))).astype(np.float64)
_BATCHES = np.unique(np.round(np.geomspace(1, 2048, 23))).astype(np.float64)
_CONTEXTS = np.unique(np.round(np.geomspace(1, 131072, 27))).astype(np.float64)


def _logs(values: Array) -> list[float]:
    logs: list[float] = np.log(values).tolist()
    return logs


_LOG_TOKENS, _LOG_BATCHES, _LOG_CONTEXTS = _logs(_TOKENS), _logs(_BATCHES), _logs(_CONTEXTS)


def _interpolated(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    """Between two points of a table, or along the line of its last two: a simulation asks for one number at a time."""
    at = min(max(bisect_right(xs, x) - 1, 0), len(xs) - 2)
    return ys[at] + (x - xs[at]) * (ys[at + 1] - ys[at]) / (xs[at + 1] - xs[at])


class Chunk(NamedTuple):
    """A part of a prompt: tokens that one step computes, and those of the same prompt that came before."""

    tokens: int
    past: int = 0


@dataclass(frozen=True)
class Steps:
    """The device time of steps of a deployment, in µs, by one framework's kernels (None: those of all, averaged)."""

    deployment: Deployment
    kernels: Kernels
    framework: str | None = None

    def step_us(self, batch: int, context: float, chunks: Sequence[Chunk] = (), heads: int | None = None) -> float:
        """One step: ``batch`` requests generate with ``context`` tokens on average; ``heads`` rows are sampled."""
        prompt = sum([chunk.tokens for chunk in chunks])
        total = self.token_us(batch + prompt) + self.head_us(batch + len(chunks) if heads is None else heads)
        if batch:
            total += self.generation_us(batch, context)
        return total + self.prompts_us(chunks) if chunks else total

    def seconds(self, prompt_tokens: int, prompt_context: float, requests: int, context: float) -> float:
        """The same as `foretell.scheduling.serving` asks: contexts are sums of what each token attends to.

        What the sums do not tell is taken to be equal: one chunk with a past, or several whole prompts of one length.
        """
        chunks: list[Chunk] = []
        if prompt_tokens:
            whole = 2 * prompt_context / prompt_tokens - 1  # tokens of a prompt from its beginning with this mean
            if whole >= prompt_tokens:
                chunks = [Chunk(prompt_tokens, round((whole - prompt_tokens) / 2))]
            else:
                count = max(1, round(prompt_tokens / max(whole, 1)))
                chunks = [Chunk(max(1, round(prompt_tokens / count)))] * count
        return seconds_from_us(self.step_us(requests, context / requests if requests else 0.0, chunks))

    def token_us(self, tokens: float) -> float:
        """What all tokens of a step pass together."""
        found = self._token_times.get(tokens)
        if found is None:
            logs = _interpolated(math.log(tokens), _LOG_TOKENS, self._token_logs)
            found = self._token_times[tokens] = self._sustained(tokens) * math.exp(logs)
        return found

    def head_us(self, rows: float) -> float:
        """The output head and the sampling of so many rows."""
        found = self._head_times.get(rows)
        if found is None:
            logs = _interpolated(math.log(max(rows, 1)), _LOG_BATCHES, self._head_logs)
            found = self._head_times[rows] = math.exp(logs)
        return found

    def generation_us(self, batch: float, context: float) -> float:
        """The attention of requests that generate."""
        if not self._has_cache:
            return 0.0
        x, y = math.log(batch), math.log(max(context, 1))
        row = min(max(bisect_right(_LOG_BATCHES, x) - 1, 0), len(_LOG_BATCHES) - 2)
        share = (x - _LOG_BATCHES[row]) / (_LOG_BATCHES[row + 1] - _LOG_BATCHES[row])
        at = min(max(bisect_right(_LOG_CONTEXTS, y) - 1, 0), len(_LOG_CONTEXTS) - 2)
        left, right = self._generation_columns(at)
        beyond, width = y - _LOG_CONTEXTS[at], _LOG_CONTEXTS[at + 1] - _LOG_CONTEXTS[at]
        low = left[row] + beyond * (right[row] - left[row]) / width
        high = left[row + 1] + beyond * (right[row + 1] - left[row + 1]) / width
        return math.exp(low + share * (high - low))

    def prompts_us(self, chunks: Sequence[Chunk]) -> float:
        """The attention of chunks of prompts: what the prompt so far takes, less what came before."""
        if not self._has_cache:
            return 0.0
        own, count, context_us = 0.0, 0, self._context_us
        for tokens, past in chunks:
            own += max(context_us(past + tokens) - context_us(past or 1), 0.0)
            count += tokens
        return context_us(1) + own * self._sustained(count)

    def _sustained(self, tokens: float) -> float:
        """How much longer many tokens take in a step than in kernels that are measured one by one.

        Products of many tokens keep the GPU at its power limit, so its clock falls; a kernel alone is over before that.
        Engines' tables of fp8 hold the quantising of the input too, which a step does elsewhere: that is as much.
        """
        if self._holds_quantising:
            return 1.0
        return 1 + _THROTTLED * min(max(math.log2(max(tokens, 1)) - _THROTTLED_FROM, 0.0) / 2, 1.0)

    @cached_property
    def _holds_quantising(self) -> bool:
        return self.deployment.weights in ("fp8", "fp8_block") and self.framework in ("vllm", "sglang")

    def _context_us(self, tokens: float) -> float:
        found = self._context_times.get(tokens)
        if found is None:
            logs = _interpolated(math.log(tokens), _LOG_CONTEXTS, self._context_logs)
            found = self._context_times[tokens] = math.exp(logs)
        return found

    # what was asked before: a simulation asks the same again and again

    @cached_property
    def _token_times(self) -> dict[float, float]:
        return {}

    @cached_property
    def _head_times(self) -> dict[float, float]:
        return {}

    @cached_property
    def _context_times(self) -> dict[float, float]:
        return {}

    @cached_property
    def _has_cache(self) -> bool:
        return any(not isinstance(group.attention, LinearAttention) for group in self.deployment.architecture.groups)

    @cached_property
    def _token_logs(self) -> list[float]:
        total = np.zeros(len(_TOKENS))
        for group in self.deployment.architecture.groups:
            total += group.count * (self._projections_us(group) + self._feed_forward_us(group) + self._norms_us())
        if self.deployment.pipeline > 1:
            size = _TOKENS * self.deployment.architecture.hidden * 2
            total += (self.deployment.pipeline - 1) * self._exchange_us("point-to-point", size, 2)
        return _logs(total)

    @cached_property
    def _head_logs(self) -> list[float]:
        place, model = self.deployment, self.deployment.architecture
        vocabulary = model.vocabulary / place.tensor
        product = self._product_us(_BATCHES, vocabulary, model.hidden, "bf16")
        if self._is_own:
            rows = {"tokens": _BATCHES, "vocabulary": np.full(len(_BATCHES), model.vocabulary)}
            return _logs(product + self._times_us("sample", rows))
        # softmax, sorting and choosing pass over the logits in fp32 about three times
        sampling = 3 * LAUNCH_US + 3 * _BATCHES * model.vocabulary * 4 / self._bytes_per_us
        gather = self._exchange_us("all-gather", _BATCHES * model.vocabulary * 2, place.tensor)
        return _logs(product + sampling + gather)

    @cached_property
    def _generations(self) -> dict[int, list[float]]:
        return {}

    def _generation_columns(self, at: int) -> tuple[list[float], list[float]]:
        """The column of a context in the table of generations, and the next one; made when it is asked for.

        A run has contexts of about one length, and the whole table would take longer than the run.
        """
        known = self._generations
        missing = [place for place in (at, at + 1) if place not in known]
        if missing:
            contexts = np.repeat(_CONTEXTS[missing], len(_BATCHES))
            logs = self._generation_logs(np.tile(_BATCHES, len(missing)), contexts)
            for number, place in enumerate(missing):
                known[place] = logs[number * len(_BATCHES) : (number + 1) * len(_BATCHES)]
        return known[at], known[at + 1]

    def _generation_logs(self, batch: Array, context: Array) -> list[float]:
        total = np.zeros(len(batch))
        for group in self.deployment.architecture.groups:
            attention = group.attention
            if isinstance(attention, GroupedAttention):
                work = self._grouped_work(attention, batch, context)
                total += group.count * self._times_us("generation", work)
            elif isinstance(attention, LatentAttention):
                total += group.count * self._times_us("latent_generation", self._latent_work(attention, batch, context))
        return _logs(np.maximum(total, LAUNCH_US))

    @cached_property
    def _context_logs(self) -> list[float]:
        one = np.ones(len(_CONTEXTS))
        total = np.zeros(len(_CONTEXTS))
        for group in self.deployment.architecture.groups:
            attention = group.attention
            if isinstance(attention, GroupedAttention):
                fast = np.full(len(one), 0)
                work = {**self._grouped_work(attention, one, _CONTEXTS), "fp8": fast}
                total += group.count * self._times_us("context", work)
            elif isinstance(attention, LatentAttention):
                total += group.count * self._times_us("latent_context", self._latent_work(attention, one, _CONTEXTS))
        return _logs(np.maximum.accumulate(np.maximum(total, LAUNCH_US)))

    def _grouped_work(self, attention: GroupedAttention, batch: Array, tokens: Array) -> dict[str, Any]:
        rows, place = len(batch), self.deployment
        return {
            "batch": batch,
            "tokens": tokens,
            "heads": np.full(rows, attention.heads / place.tensor),
            "kv_heads": np.full(rows, place.kv_heads(attention)),
            "head_size": np.full(rows, attention.head_size),
            "window": np.full(rows, attention.window),
            "kv_bytes": np.full(rows, place.kv_bytes),
        }

    def _latent_work(self, attention: LatentAttention, batch: Array, tokens: Array) -> dict[str, Any]:
        rows, place = len(batch), self.deployment
        heads = np.full(rows, attention.heads / place.tensor)
        return {"batch": batch, "tokens": tokens, "heads": heads, "kv_bytes": np.full(rows, place.kv_bytes)}

    def _projections_us(self, group: Layers) -> Array:
        """The products around one attention, its rotary embedding, and the all-reduce after it."""
        place, hidden, attention = self.deployment, self.deployment.architecture.hidden, group.attention
        scheme, tp = place.scheme("attention"), place.tensor
        if isinstance(attention, GroupedAttention):
            queries = attention.heads * attention.head_size / tp
            keys = place.kv_heads(attention) * attention.head_size
            total = self._product_us(_TOKENS, queries * (2 if attention.gated else 1) + 2 * keys, hidden, scheme)
            total += self._product_us(_TOKENS, hidden, queries, scheme)
            total += self._small_us("rotate", queries + 2 * keys, place.kv_bytes)  # and into the cache
            if self._is_own and scheme == "fp8":
                total += self._small_us("cast", queries, 1)  # engines quantise inside of the attention
        elif isinstance(attention, LatentAttention):
            total = self._latent_us(attention, scheme)
        else:
            total = self._linear_us(attention, scheme)
        return total + self._exchange_us("all-reduce", _TOKENS * hidden * 2, tp)

    def _latent_us(self, attention: LatentAttention, scheme: str) -> Array:
        """Down and up projections; when generating, those of keys and values are absorbed, at a like cost."""
        hidden, tp = self.deployment.architecture.hidden, self.deployment.tensor
        head = attention.nope_size + attention.rope_size
        down = (attention.query_rank or 0) + attention.rank + attention.rope_size
        total = self._product_us(_TOKENS, down, hidden, scheme)
        total += self._product_us(_TOKENS, attention.heads / tp * head, attention.query_rank or hidden, scheme)
        up = attention.heads / tp * (attention.nope_size + attention.value_size)
        total += self._product_us(_TOKENS, up, attention.rank, scheme)
        total += self._product_us(_TOKENS, hidden, attention.heads / tp * attention.value_size, scheme)
        # two norms of the latents, the rotary embedding, and a second batched product
        return total + 3 * self._elementwise_us(_TOKENS * 2 * down) + LAUNCH_US

    def _linear_us(self, attention: LinearAttention, scheme: str) -> Array:
        """A gated delta rule: its products, and kernels that read and write the states; those were not measured."""
        place, hidden = self.deployment, self.deployment.architecture.hidden
        tp, values = place.tensor, attention.value_heads * attention.value_size
        total = self._product_us(
            _TOKENS, (attention.mixed_size + values + 2 * attention.value_heads) / tp, hidden, scheme
        )
        total += self._product_us(_TOKENS, hidden, values / tp, scheme)
        states = 2 * attention.state_elements * 4 / tp  # of one request, read and written
        flops = 6 * _TOKENS * attention.value_heads * attention.key_size * attention.value_size / tp
        peak = place.device.peak_tflops("bf16", tensor_cores=True) * TERA * _LINEAR_SHARE / MEGA
        rule = np.minimum(_TOKENS, 256) * states / self._bytes_per_us + flops / peak
        return total + _LINEAR_KERNELS * LAUNCH_US + rule

    def _feed_forward_us(self, group: Layers) -> Array:
        """One feed-forward part, and the exchange after it."""
        place, hidden, part = self.deployment, self.deployment.architecture.hidden, group.feed_forward
        tp = place.tensor
        if isinstance(part, Dense):
            return self._dense_us(part.inner, "dense", part.gated) + self._exchange_us(
                "all-reduce", _TOKENS * hidden * 2, tp
            )
        total = np.zeros(len(_TOKENS))
        if not self._is_own:  # the router and its choice; torch's experts were measured with them
            total += self._product_us(_TOKENS, part.count, hidden, "bf16") + 2 * LAUNCH_US
        if part.shared:
            # engines run the shared expert beside the others while the GPU has room (vLLM's limit is 256 tokens)
            total += np.where(_TOKENS <= _BESIDE, 0.0, self._dense_us(part.shared, "shared", True))
        replicas = place.data if place.shares_experts else 1
        rows = len(_TOKENS)
        work = {
            "tokens": _TOKENS * replicas,
            "hidden": np.full(rows, hidden),
            "inner": np.full(rows, part.inner),
            "top": np.full(rows, part.top),
            "experts": np.full(rows, part.count),
            "tensor_parallel": np.full(rows, place.expert_tensor),
            "expert_parallel": np.full(rows, place.expert),
            "distribution": np.full(rows, POWER_LAW_1_01),
            "scheme": [place.scheme("experts")] * rows,
        }
        total += self._times_us("experts", work)
        if place.shares_experts:
            gpus = tp * place.data
            sent = _TOKENS * min(part.top, gpus) * hidden
            return total + self._exchange_us("all-to-all", sent, gpus) + self._exchange_us("all-to-all", 2 * sent, gpus)
        return total + self._exchange_us("all-reduce", _TOKENS * hidden * 2, tp)

    def _dense_us(self, inner: int, part: str, gated: bool) -> Array:
        hidden, tp, scheme = self.deployment.architecture.hidden, self.deployment.tensor, self.deployment.scheme(part)
        wide = (2 if gated else 1) * inner / tp
        total = self._product_us(_TOKENS, wide, hidden, scheme) + self._product_us(_TOKENS, hidden, inner / tp, scheme)
        return total + self._small_us("gate", inner / tp, 1 if scheme == "fp8" else 2)

    def _norms_us(self) -> Array:
        """Two norms, each fused with the residual's addition: two tensors read, two written."""
        written = 1 if self.deployment.scheme("attention") == "fp8" else 2
        return 2 * self._small_us("norm", self.deployment.architecture.hidden, written)

    @property
    def _bytes_per_us(self) -> float:
        return self.deployment.device.bandwidth_gb_per_s * GIGA * _ELEMENTWISE_SHARE / MEGA

    @property
    def _is_own(self) -> bool:
        return self.framework in (TORCH, TORCH_PAGED)

    def _small_us(self, part: str, width: float, written_bytes: int) -> Array:
        """A part that only moves numbers; bytes are those of bf16, whatever the product after it takes."""
        size = width * SMALL_BYTES[part]
        if not self._is_own:
            return self._elementwise_us(_TOKENS * size / 2)
        rows = len(_TOKENS)
        sizes = {"width": np.full(rows, width), "bytes_per_token": np.full(rows, size)}
        kind = {"part": np.full(rows, SMALL[part]), "written_bytes": np.full(rows, written_bytes)}
        return self._times_us("small", {"tokens": _TOKENS, **sizes, **kind})

    def _elementwise_us(self, elements: Array) -> Array:
        times: Array = LAUNCH_US + elements * 2 / self._bytes_per_us
        return times

    def _product_us(self, m: Array, n: float, k: float, scheme: str) -> Array:
        work = {"m": m, "n": np.full(len(m), n), "k": np.full(len(m), k), "scheme": [scheme] * len(m)}
        return self._times_us("product", work)

    def _times_us(self, kind: str, work: dict[str, Any]) -> Array:
        return self.kernels.times_us(kind, work, self.deployment.device, self.framework)

    def _exchange_us(self, kind: Kind, sizes: Array, gpus: int) -> Array:
        if gpus == 1:
            return np.zeros(len(sizes))
        fabric = fabric_of(self.deployment.device, network=self.deployment.network)
        library = _LIBRARIES.get(self.framework or "", "engine")
        times = [collective_time(kind, float(size), gpus, fabric, library).seconds.value for size in sizes]
        return np.array([us(seconds) for seconds in times])
