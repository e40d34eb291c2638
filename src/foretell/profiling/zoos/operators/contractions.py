"""Profiling: contractions as users write them: ``einsum`` of two and three operands, attention by hand, and
``nn.TransformerEncoderLayer``, which has a fast path of its own in evaluation mode.
"""

import math
import random
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from foretell.profiling.zoos.operators.drawing import Call, Drawn, Kinds, Shape, draw_size, work

_TOKENS = (16, 32, 49, 64, 77, 100, 128, 196, 197, 256, 384, 512, 1024)
_HEADS = (1, 2, 3, 4, 6, 8, 12, 16)
_WIDTHS = (8, 16, 24, 32, 40, 48, 64, 64, 64, 80, 96, 128)
_TWO = (
    "bhid,bhjd->bhij", "bhij,bhjd->bhid", "bnd,de->bne", "bnd,bmd->bnm", "bchw,bcd->bdhw", "bchw,cd->bdhw",
    "bihd,bjhd->bhij", "bhij,bjhd->bihd", "bnhd,hde->bnhe", "bij,bjk->bik", "nctv,vw->nctw", "bi,bj->bij", "bnd,bn->bd",
    "bhnd,bhne->bhde", "bhde,bhnd->bhne", "bcn,bdn->bcd", "bd,dk->bk", "bid,bjd->bijd", "bqnc,nck->bqnk",
    "gbd,gde->gbe",
)  # fmt: skip
_THREE = (
    "bhid,bhjd,bhjm->bhim", "bij,jk,bkl->bil", "bi,ijk,bj->bk", "bnd,de,bme->bnm", "bi,bj,bk->bijk", "bik,kj,bjd->bid",
    "bhnd,bhmd,bhme->bhne", "nr,mr,br->bnm", "bld,dn,bl->bdn", "bd,de,be->b", "bcij,cd,bdij->bij",
)  # fmt: skip


def _batch(draw: random.Random) -> int:
    return draw.choice((1, 1, 2, 4, 8, 16, 32, 64))


def _sizes(draw: random.Random, equation: str) -> dict[str, int]:
    """A size for each letter, as large as networks have them for what the letter usually means."""
    usual: Mapping[str, Callable[[], int]] = {
        "b": lambda: _batch(draw), "h": lambda: draw.choice(_HEADS), "n": lambda: draw.choice(_TOKENS),
        "g": lambda: draw.choice((2, 4, 8, 16)), "c": lambda: draw_size(draw, 8, 256),
        "d": lambda: draw.choice((*_WIDTHS, 256, 384, 512, 768)), "r": lambda: draw.choice((4, 8, 16, 32)),
    }  # fmt: skip
    letters = sorted(set(equation) & set("abcdefghijklmnopqrstuvwxyz"))
    many = len(letters)
    sizes = {}
    for letter in letters:
        other = draw.choice(_TOKENS) if many < 5 else draw.choice(_TOKENS[:9])
        sizes[letter] = usual[letter]() if letter in usual else other
    return sizes


def _einsum(draw: random.Random, equations: tuple[str, ...]) -> Drawn:
    equation = draw.choice(equations)
    sizes = _sizes(draw, equation)
    operands, _, result = equation.partition("->")
    shapes = [tuple(sizes[letter] for letter in operand) for operand in operands.split(",")]
    # as if PyTorch contracted from left to right: what the later operands or the result name is kept
    first, *later = operands.split(",")
    macs = written = 0
    while later:
        second, *later = later
        together = set(first) | set(second)
        first = "".join(sorted(together & set(result + "".join(later))))
        macs += math.prod(sizes[letter] for letter in together)
        written = max(written, math.prod(sizes[letter] for letter in first))
    return Call(lambda *tensors: torch.einsum(equation, *tensors)), shapes, work(macs, written)


def _two_operands(draw: random.Random) -> Drawn:
    return _einsum(draw, _TWO)


def _three_operands(draw: random.Random) -> Drawn:
    return _einsum(draw, _THREE)


def _attention(draw: random.Random) -> Drawn:
    """Attention by hand on projected tokens: heads are split off by views, some are copied to be contiguous."""
    batch, tokens, heads, width = _batch(draw), draw.choice(_TOKENS), draw.choice(_HEADS), draw.choice(_WIDTHS)
    keys = tokens if draw.random() < 0.8 else draw.choice(_TOKENS)
    mask = draw.choice(("none", "add", "fill", "causal", "bias"))
    copied, ordered = draw.random() < 0.3, draw.random() < 0.3
    softmax_fp32, scaled_first = draw.random() < 0.25, draw.random() < 0.4
    shapes: list[Shape] = [(batch, tokens, heads * width), (batch, keys, heads * width), (batch, keys, heads * width)]
    if mask != "none":
        shapes.append({"bias": (heads, tokens, keys), "add": (batch, 1, 1, keys)}.get(mask, (tokens, keys)))

    def heads_of(operand: Any) -> Any:
        split = operand.view(operand.shape[0], operand.shape[1], heads, width).transpose(1, 2)
        return split.contiguous() if copied else split

    def attend(query: Any, key: Any, value: Any, bias: Any = None) -> Any:
        query, key, value = heads_of(query), heads_of(key), heads_of(value)
        if scaled_first:
            query = query * width**-0.5
        scores = query @ key.transpose(-2, -1)
        if not scaled_first:
            scores = scores / math.sqrt(width)
        if mask in ("add", "bias"):
            scores = scores + bias
        elif mask in ("fill", "causal"):
            scores = scores.masked_fill(bias > 0, float("-inf") if mask == "causal" else -1e4)
        weights = scores.float().softmax(-1).type_as(query) if softmax_fp32 else scores.softmax(-1)
        mixed = (weights @ value).transpose(1, 2)
        return mixed.reshape(batch, tokens, heads * width) if ordered else mixed.flatten(2)

    scores_count = batch * heads * tokens * keys
    return Call(attend), shapes, work(2 * scores_count * width, 2 * scores_count)


def _linear_attention(draw: random.Random) -> Drawn:
    batch, tokens, heads, width = _batch(draw), draw.choice(_TOKENS), draw.choice(_HEADS), draw.choice(_WIDTHS)
    kind = draw.choice(("elu", "relu", "softmax"))
    shape = (batch, heads, tokens, width)

    def attend(query: Any, key: Any, value: Any) -> Any:
        if kind == "softmax":
            query, key = query.softmax(-1), key.softmax(-2)
            return query @ (key.transpose(-2, -1) @ value)
        query, key = (functional.elu(part) + 1 if kind == "elu" else part.relu() for part in (query, key))
        state = torch.einsum("bhnd,bhne->bhde", key, value)
        scale = 1 / (torch.einsum("bhnd,bhd->bhn", query, key.sum(2)) + 1e-6)
        return torch.einsum("bhnd,bhde,bhn->bhne", query, state, scale)

    return Call(attend), [shape] * 3, 2 * math.prod(shape) * width


def _encoder(draw: random.Random) -> Drawn:
    """A layer of ``nn.TransformerEncoder``, or an attention layer alone; both have a fast path in evaluation mode."""
    heads, width = draw.choice((1, 2, 4, 6, 8, 12, 16)), draw.choice((16, 32, 48, 64, 64, 96))
    total, batch, tokens = heads * width, _batch(draw), draw.choice(_TOKENS)
    inner, first = total * draw.choice((1, 2, 4, 4)), draw.random() < 0.85
    shape = (batch, tokens, total) if first else (tokens, batch, total)
    if draw.random() < 0.25:
        macs = batch * tokens * (4 * total * total + 2 * tokens * total)
        return _SelfAttention(nn.MultiheadAttention(total, heads, batch_first=first)), [shape], macs
    layer = nn.TransformerEncoderLayer(
        total, heads, inner, draw.choice((0.0, 0.1)), draw.choice(("relu", "gelu")), batch_first=first,
        norm_first=draw.random() < 0.3,
    )  # fmt: skip
    return layer, [shape], batch * tokens * (4 * total * total + 2 * total * inner + 2 * tokens * total)


class _SelfAttention(nn.Module):  # type: ignore[misc]
    """An attention of a sequence to itself."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, tokens: Any) -> Any:
        """The new tokens."""
        return self.layer(tokens, tokens, tokens, need_weights=False)[0]


CONTRACTIONS: Kinds = MappingProxyType({_two_operands: 45, _three_operands: 45, _linear_attention: 10})
ATTENTION: Kinds = MappingProxyType({_attention: 55, _linear_attention: 10, _encoder: 35})
