"""Lab: a small paged engine of plain torch with random weights: whole steps, as a serving engine runs them.

A decoding step embeds a token of each sequence, passes it through all layers (norm with the residual, one product for
queries, keys and values, rotary embedding into the cache, attention over the cache, its product, norm, gated
feed-forward or experts), and samples. A prefill step does the same with whole prompts and samples their last tokens.
Attention is SDPA over a static cache (``sdpa``), or flash-decoding over pages (``paged``). There is no batching of
requests here: a step is captured and replayed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from lab.campaigns.serving import kernels

Tensor = Any


@dataclass(frozen=True)
class Shape:
    """The sizes of a model; ``experts`` are (count, chosen, inner size), or None."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    inner: int
    vocabulary: int
    experts: tuple[int, int, int] | None = None
    tied: bool = False


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("meta-llama/Llama-3.1-8B", 32, 4096, 32, 8, 128, 14336, 128256),
        Shape("Qwen/Qwen2.5-7B", 28, 3584, 28, 4, 128, 18944, 152064),
        Shape("mistralai/Mistral-7B-Instruct-v0.3", 32, 4096, 32, 8, 128, 14336, 32768),
        Shape("meta-llama/Llama-2-7b-hf", 32, 4096, 32, 32, 128, 11008, 32000),
        Shape("meta-llama/Llama-3.2-3B", 28, 3072, 24, 8, 128, 8192, 128256, tied=True),
        Shape("Qwen/Qwen2.5-0.5B", 24, 896, 14, 2, 64, 4864, 151936, tied=True),
        Shape("Qwen/Qwen2.5-14B", 48, 5120, 40, 8, 128, 13824, 152064),
        Shape("Qwen/Qwen3-30B-A3B", 48, 2048, 32, 4, 128, 6144, 151936, (128, 8, 768)),
        Shape("tiny", 2, 64, 4, 2, 32, 128, 512),
        Shape("tiny-experts", 2, 64, 4, 2, 32, 128, 512, (8, 2, 32)),
    )
}


def random_weight(precision: str, n: int, k: int, device: str) -> Callable[[Tensor], Tensor]:
    """A product with random weights of n × k in a precision: a function of rows in the product's input precision."""
    if precision == "fp8":
        weight = torch.randn(n, k, device=device, dtype=torch.bfloat16).to(torch.float8_e4m3fn)
        one = torch.ones((), device=device)
        return lambda x: torch._scaled_mm(
            x, weight.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
        )
    if precision == "int4-weights":
        packed = torch.randint(0, 256, (n, k // 2), device=device, dtype=torch.uint8)
        weight = torch.ops.aten._convert_weight_to_int4pack(packed, 8)
        scales = torch.ones(k // 128, n, 2, device=device, dtype=torch.bfloat16)
        return lambda x: torch.ops.aten._weight_int4pack_mm(x, weight, 128, scales)
    weight = torch.randn(n, k, device=device, dtype=torch.bfloat16) * k**-0.5
    return lambda x: torch.nn.functional.linear(x, weight)


class Mixture:
    """Experts by grouped products: tokens are sorted by expert, multiplied, and added up again."""

    def __init__(self, hidden: int, experts: tuple[int, int, int], device: str) -> None:
        self.count, self.top, inner = experts
        self.router = random_weight("bf16", self.count, hidden, device)
        options = {"device": device, "dtype": torch.bfloat16}
        self.wide = torch.randn(self.count, 2 * inner, hidden, **options) * hidden**-0.5
        self.narrow = torch.randn(self.count, hidden, inner, **options) * inner**-0.5
        self.numbers = torch.arange(self.count, device=device)

    def __call__(self, x: Tensor) -> Tensor:
        """The weighted sum of each token's experts."""
        shares, chosen = torch.topk(torch.softmax(self.router(x).float(), dim=-1), self.top, dim=-1)
        flat = chosen.flatten()
        order = torch.argsort(flat, stable=True)
        ends = (flat[:, None] == self.numbers).sum(0).cumsum(0).to(torch.int32)
        rows = x[order // self.top]
        both = torch._grouped_mm(rows, self.wide.transpose(1, 2), offs=ends)
        inner = torch._grouped_mm(kernels.gate(both, x.dtype), self.narrow.transpose(1, 2), offs=ends)
        weighted = torch.empty_like(inner)
        weighted[order] = inner * shares.flatten()[order][:, None].to(inner.dtype)
        return weighted.view(len(x), self.top, -1).sum(1)


@dataclass(frozen=True)
class Layer:
    """Norms and products of one layer."""

    norms: tuple[Tensor, Tensor]
    qkv: Callable[[Tensor], Tensor]
    out: Callable[[Tensor], Tensor]
    wide: Callable[[Tensor], Tensor]
    narrow: Callable[[Tensor], Tensor] | None


class Model:
    """A model with random weights in one precision; experts stay in bf16."""

    def __init__(self, shape: Shape, precision: str, device: str) -> None:
        self.shape, self.precision, self.device = shape, precision, device
        self.input_dtype = torch.float8_e4m3fn if precision == "fp8" else torch.bfloat16
        self.embedding = torch.randn(shape.vocabulary, shape.hidden, device=device, dtype=torch.bfloat16)
        self.head: Callable[[Tensor], Tensor] = (
            (lambda x: torch.nn.functional.linear(x, self.embedding))
            if shape.tied
            else random_weight("bf16", shape.vocabulary, shape.hidden, device)
        )
        self.norm = torch.ones(shape.hidden, device=device, dtype=torch.bfloat16)
        self.layers = [self._layer() for _ in range(shape.layers)]

    def _layer(self) -> Layer:
        shape = self.shape
        rows = (shape.heads + 2 * shape.kv_heads) * shape.head_size

        def weight(n: int, k: int) -> Callable[[Tensor], Tensor]:
            return random_weight(self.precision, n, k, self.device)

        norms = [torch.ones(shape.hidden, device=self.device, dtype=torch.bfloat16) for _ in range(2)]
        attention = weight(rows, shape.hidden), weight(shape.hidden, shape.heads * shape.head_size)
        if shape.experts is not None:
            return Layer((norms[0], norms[1]), *attention, Mixture(shape.hidden, shape.experts, self.device), None)
        dense = weight(2 * shape.inner, shape.hidden), weight(shape.hidden, shape.inner)
        return Layer((norms[0], norms[1]), *attention, *dense)

    def step(self, tokens: Tensor, angles: Tensor, slots: Tensor, caches: Any, attend: Any, last: Tensor) -> Tensor:
        """One step over all tokens; ``attend`` is the attention over a layer's cache, ``last`` the rows to sample."""
        shape = self.shape
        x = self.embedding[tokens]
        residual = torch.empty_like(x)
        for number, (layer, cache) in enumerate(zip(self.layers, caches, strict=True)):
            h = self._normed(x, residual, layer.norms[0], number > 0, self.input_dtype)
            query = kernels.rotate(layer.qkv(h), angles, slots, cache, shape.heads, shape.kv_heads)
            attended = attend(query, cache).reshape(len(tokens), -1)
            x = layer.out(attended if self.precision != "fp8" else kernels.cast(attended, self.input_dtype))
            if layer.narrow is None:
                x = layer.wide(self._normed(x, residual, layer.norms[1], True, torch.bfloat16))
            else:
                h = self._normed(x, residual, layer.norms[1], True, self.input_dtype)
                x = layer.narrow(kernels.gate(layer.wide(h), self.input_dtype))
        h = self._normed(x, residual, self.norm, True, torch.bfloat16)
        return sample(self.head(h[last]))

    def _normed(self, x: Tensor, residual: Tensor, weight: Tensor, add: bool, dtype: Any) -> Tensor:
        out = torch.empty(x.shape, device=x.device, dtype=dtype)
        return kernels.add_norm(x, residual, weight, out, add=add)


def sample(logits: Tensor) -> Tensor:
    """A token of each row, drawn by its probability (the exponential race of gpt-fast and vLLM)."""
    shares = torch.softmax(logits.float(), dim=-1)
    return torch.argmax(shares.div_(torch.empty_like(shares).exponential_(1)), dim=-1)


def make_caches(shape: Shape, slots: int, device: str, dtype: Any = torch.bfloat16) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of all layers, filled with random numbers."""

    def cache() -> Tensor:
        made = torch.empty(slots, shape.kv_heads, shape.head_size, device=device, dtype=torch.bfloat16)
        return made.normal_().to(dtype)

    return [(cache(), cache()) for _ in range(shape.layers)]


def decode_step(model: Model, batch: int, context: int, attention: str, kv_dtype: Any) -> tuple[Callable[[], Any], Any]:
    """A decoding step of sequences that all have ``context`` tokens, and its caches."""
    shape, device = model.shape, model.device
    room = -(-context // kernels.PAGE) * kernels.PAGE
    caches = make_caches(shape, batch * room, device, kv_dtype)
    sequences = torch.arange(batch, device=device)
    tokens = torch.randint(0, shape.vocabulary, (batch,), device=device)
    angles = torch.rand(batch, shape.head_size, device=device)
    if attention == "sdpa":
        slots = sequences * room + context - 1

        def attend(query: Tensor, cache: tuple[Tensor, Tensor]) -> Tensor:
            keys, values = (one.view(batch, room, shape.kv_heads, -1)[:, :context].transpose(1, 2) for one in cache)
            is_grouped = shape.heads != shape.kv_heads
            query = query.view(batch, shape.heads, 1, -1)
            return torch.nn.functional.scaled_dot_product_attention(query, keys, values, enable_gqa=is_grouped)
    else:
        # the pages of all sequences in random order, as an engine's memory looks after a while
        pages = torch.randperm(batch * room // kernels.PAGE, device=device).view(batch, -1).to(torch.int32)
        last = (context - 1) // kernels.PAGE
        slots = pages[:, last].long() * kernels.PAGE + (context - 1) % kernels.PAGE
        lengths = torch.full((batch,), context, device=device, dtype=torch.int32)
        sms = torch.cuda.get_device_properties(0).multi_processor_count if device == "cuda" else 2
        splits = kernels.splits_of(batch, shape.kv_heads, context, sms)

        def attend(query: Tensor, cache: tuple[Tensor, Tensor]) -> Tensor:
            return kernels.paged_decode(query, cache, pages, lengths, shape.kv_heads, splits)

    return lambda: model.step(tokens, angles, slots, caches, attend, sequences), caches


def prefill_step(model: Model, batch: int, prompt: int) -> tuple[Callable[[], Any], Any]:
    """A step over whole prompts of equal length, and its caches."""
    shape, device = model.shape, model.device
    count = batch * prompt
    caches = make_caches(shape, count, device)
    tokens = torch.randint(0, shape.vocabulary, (count,), device=device)
    angles, slots = torch.rand(count, shape.head_size, device=device), torch.arange(count, device=device)
    last = torch.arange(batch, device=device) * prompt + prompt - 1

    def attend(query: Tensor, cache: tuple[Tensor, Tensor]) -> Tensor:
        query = query.view(batch, prompt, shape.heads, -1).transpose(1, 2)
        keys, values = (one.view(batch, prompt, shape.kv_heads, -1).transpose(1, 2) for one in cache)
        is_grouped = shape.heads != shape.kv_heads
        attended = torch.nn.functional.scaled_dot_product_attention(
            query, keys, values, is_causal=True, enable_gqa=is_grouped
        )
        return attended.transpose(1, 2)

    return lambda: model.step(tokens, angles, slots, caches, attend, last), caches
