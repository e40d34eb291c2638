# mypy: ignore-errors
# Triton reads the types of a kernel from its arguments; annotations would be wrong in Python's sense.
"""Lab: the small kernels of a paged engine, in Triton: norms, rotary embedding, gated activation, decoding attention.

They are what vLLM and SGLang have in CUDA or Triton: an addition fused with an RMS norm, a rotation that writes keys
and values into the cache, SiLU times its gate, and flash-decoding over pages of 16 tokens (each split of a sequence
keeps its own softmax; a second kernel joins them). A norm and an activation write fp8 where their result is multiplied
in fp8. ``TRITON_INTERPRET=1`` runs all of it on a CPU.
"""

from typing import Any

import torch
import triton
import triton.language as tl

PAGE = 16
_TOKENS_PER_BLOCK = 64
_LEAST_PER_SPLIT = 256


@triton.jit
def _norm(x, residual, weight, out, width, eps, BLOCK: tl.constexpr, ADD: tl.constexpr):  # noqa: N803
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    value = tl.load(x + row * width + at, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        value += tl.load(residual + row * width + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(residual + row * width + at, value.to(residual.dtype.element_ty), mask=inside)
    scale = tl.rsqrt(tl.sum(value * value, axis=0) / width + eps)
    result = value * scale * tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + at, result.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["heads", "kv_heads"])
def _rotate(qkv, angles, slots, query, keys, values, heads, kv_heads, HALF: tl.constexpr):  # noqa: N803
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    size: tl.constexpr = 2 * HALF
    at = tl.arange(0, HALF)
    source = qkv + (token * (heads + 2 * kv_heads) + head) * size
    low, high = tl.load(source + at).to(tl.float32), tl.load(source + HALF + at).to(tl.float32)
    slot = tl.load(slots + token)
    if head < heads + kv_heads:
        cos, sin = tl.load(angles + token * size + at), tl.load(angles + token * size + HALF + at)
        low, high = low * cos - high * sin, high * cos + low * sin
    # three names, because a name has one type in Triton, and the cache may be fp8
    if head < heads:
        to_query = query + (token * heads + head) * size
        tl.store(to_query + at, low.to(query.dtype.element_ty))
        tl.store(to_query + HALF + at, high.to(query.dtype.element_ty))
    elif head < heads + kv_heads:
        to_keys = keys + (slot * kv_heads + head - heads) * size
        tl.store(to_keys + at, low.to(keys.dtype.element_ty))
        tl.store(to_keys + HALF + at, high.to(keys.dtype.element_ty))
    else:
        to_values = values + (slot * kv_heads + head - heads - kv_heads) * size
        tl.store(to_values + at, low.to(values.dtype.element_ty))
        tl.store(to_values + HALF + at, high.to(values.dtype.element_ty))


@triton.jit
def _gate(both, out, inner, BLOCK: tl.constexpr):  # noqa: N803
    row, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < inner
    gate = tl.load(both + row * 2 * inner + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both + row * 2 * inner + inner + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * inner + at, (gate / (1 + tl.exp(-gate)) * up).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _cast(x, out, count, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < count, other=0.0).to(out.dtype.element_ty), mask=at < count)


@triton.jit(do_not_specialize=["heads", "kv_heads", "most_pages", "splits"])
def _decode(
    query, keys, values, pages, lengths, parts, logs, scale, heads, kv_heads, most_pages, splits,
    SIZE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, PAGE_SIZE: tl.constexpr,  # noqa: N803
):  # fmt: skip
    sequence, kv_head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    group = heads // kv_heads
    row, at, lane = tl.arange(0, ROWS), tl.arange(0, SIZE), tl.arange(0, BLOCK)
    is_head = row < group
    head = kv_head * group + row
    q = tl.load(query + (sequence * heads + head[:, None]) * SIZE + at[None, :], mask=is_head[:, None], other=0.0)
    length = tl.load(lengths + sequence)
    each = tl.cdiv(tl.cdiv(length, splits), BLOCK) * BLOCK
    start, end = split * each, tl.minimum(split * each + each, length)
    top = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    result = tl.zeros([ROWS, SIZE], tl.float32)
    for token in range(start, end, BLOCK):
        here = token + lane
        inside = here < end
        page = tl.load(pages + sequence * most_pages + here // PAGE_SIZE, mask=inside, other=0).to(tl.int64)
        place = ((page * PAGE_SIZE + here % PAGE_SIZE) * kv_heads + kv_head) * SIZE
        k = tl.load(keys + place[None, :] + at[:, None], mask=inside[None, :], other=0.0).to(q.dtype)
        score = tl.dot(q, k) * scale
        score = tl.where(inside[None, :], score, -float("inf"))
        new_top = tl.maximum(top, tl.max(score, axis=1))
        weight = tl.exp(score - new_top[:, None])
        old = tl.exp(top - new_top)
        v = tl.load(values + place[:, None] + at[None, :], mask=inside[:, None], other=0.0).to(q.dtype)
        result = result * old[:, None] + tl.dot(weight.to(q.dtype), v)
        total = total * old + tl.sum(weight, axis=1)
        top = new_top
    out = (sequence * heads + head) * splits + split
    tl.store(parts + out[:, None] * SIZE + at[None, :], result / total[:, None], mask=is_head[:, None])
    tl.store(logs + out, top + tl.log(total), mask=is_head)  # -inf where the split is empty: not read again


@triton.jit(do_not_specialize=["splits"])
def _join(parts, logs, out, splits, SIZE: tl.constexpr):  # noqa: N803
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, SIZE)
    top = -float("inf")
    total = 0.0
    result = tl.zeros([SIZE], tl.float32)
    for split in range(splits):
        log = tl.load(logs + row * splits + split)
        if log > -float("inf"):
            new_top = tl.maximum(top, log)
            old, weight = tl.exp(top - new_top), tl.exp(log - new_top)
            result = result * old + weight * tl.load(parts + (row * splits + split) * SIZE + at)
            total = total * old + weight
            top = new_top
    tl.store(out + row * SIZE + at, (result / total).to(out.dtype.element_ty))


def add_norm(x: Any, residual: Any, weight: Any, out: Any, *, add: bool = True) -> Any:
    """The residual takes ``x`` in (or becomes it), and ``out`` is its RMS norm."""
    rows, width = x.shape
    _norm[(rows,)](x, residual, weight, out, width, 1e-5, BLOCK=triton.next_power_of_2(width), ADD=add, num_warps=8)
    return out


def rotate(qkv: Any, angles: Any, slots: Any, cache: tuple[Any, Any], heads: int, kv_heads: int) -> Any:
    """Rotated queries; rotated keys and the values go into their slots of the cache."""
    tokens, size = qkv.shape[0], angles.shape[1]
    query = torch.empty(tokens, heads, size, device=qkv.device, dtype=qkv.dtype)
    grid = (tokens, heads + 2 * kv_heads)
    _rotate[grid](qkv, angles, slots, query, *cache, heads, kv_heads, HALF=size // 2, num_warps=1)
    return query


def gate(both: Any, dtype: Any) -> Any:
    """SiLU of the first half of each row, times the second."""
    rows, inner = both.shape[0], both.shape[1] // 2
    out = torch.empty(rows, inner, device=both.device, dtype=dtype)
    _gate[(rows, triton.cdiv(inner, 1024))](both, out, inner, BLOCK=1024, num_warps=4)
    return out


def cast(x: Any, dtype: Any) -> Any:
    """The same numbers in another precision, by a static scale of 1."""
    out = torch.empty(x.shape, device=x.device, dtype=dtype)
    _cast[(triton.cdiv(x.numel(), 2048),)](x, out, x.numel(), BLOCK=2048, num_warps=4)
    return out


def splits_of(batch: int, kv_heads: int, context: int, sms: int) -> int:
    """Into how many parts a sequence is split: enough for four programs an SM, of no less than 256 tokens."""
    wanted = max(1, 4 * sms // (batch * kv_heads))
    return max(1, min(wanted, context // _LEAST_PER_SPLIT, 64))


def paged_decode(query: Any, cache: tuple[Any, Any], pages: Any, lengths: Any, kv_heads: int, splits: int) -> Any:
    """The attention of one token of each sequence over its pages."""
    batch, heads, size = query.shape
    parts = torch.empty(batch, heads, splits, size, device=query.device, dtype=torch.float32)
    logs = torch.empty(batch, heads, splits, device=query.device, dtype=torch.float32)
    rows = max(16, triton.next_power_of_2(heads // kv_heads))
    _decode[(batch, kv_heads, splits)](
        query, *cache, pages, lengths, parts, logs, size**-0.5, heads, kv_heads, pages.shape[1], splits,
        SIZE=size, ROWS=rows, BLOCK=_TOKENS_PER_BLOCK, PAGE_SIZE=PAGE, num_warps=4, num_stages=3,
    )  # fmt: skip
    out = torch.empty_like(query)
    _join[(batch * heads,)](parts, logs, out, splits, SIZE=size, num_warps=1)
    return out
