"""Profiling: products with few rows or columns, einsum that sums little, and rows that do not lie one after the other.

Linear layers of small batches, of tables and of coordinates have a side of a few elements. An einsum may sum nothing,
or only a short axis. Norms, reductions, softmax and sorting run over transposed tensors, and batch norms over plain
vectors.
"""

import math
import random
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from foretell.profiling.zoos.operators.drawing import Call, Drawn, Kinds, Shape, draw_few, draw_size, work

_EQUATIONS = (
    "bnhd,bnh->bnhd", "bijc,bjc->bijc", "bijc,bij->bijc", "bnd,bn->bnd", "bld,bln->bldn", "bld,dn->bldn", "bi,bij->bij",
    "bhn,bhnd->bhnd", "bnkc,bnkc->bnc", "bdn,bn->bd", "bnhd,bhd->bnh", "brs,brsc->brc", "bkhw,w->bkh", "bkdn,d->bkn",
    "bchw,bc->bhw", "bnhd,bnhe->bhde", "bnhd,bhde->bnhe", "bhnd,bhmd->bhnm", "bhnm,bhmd->bnhd", "bci,bcj->bij",
    "bij,bcj->bci", "bixy,ioxy->boxy", "btd,des->btes", "bkhw,bc->bkc", "nd,md->nm", "bw,bpw->bp", "bijh,bjhd->bihd",
)  # fmt: skip


def _rows(draw: random.Random) -> int:
    return draw.choice((1, 1, 2, 3, 4, 6, 8, 8, 10, 12, 16, 16, 24, 32, 48, 64, 64, 96, 128))


def _few_rows(draw: random.Random) -> Drawn:
    """A linear layer on one to 128 rows; long rows where features are flattened."""
    inputs = draw.choice((draw_size(draw, 16, 4096), draw_size(draw, 1024, 32768)))
    outputs = draw.choice((draw_size(draw, 8, 4096), 256, 512, 1024, draw_few(draw), 10, 18, 51, 100, 1000))
    rows: Shape = draw.choice(((_rows(draw),), (_rows(draw),), (draw_few(draw), draw.choice((1, 5, 10, 20, 50)))))
    return nn.Linear(inputs, outputs, bias=draw.random() < 0.8), [(*rows, inputs)], math.prod(rows) * inputs * outputs


def _narrow(draw: random.Random) -> Drawn:
    """A linear layer on many rows whose inputs or outputs are few: coordinates, scores, colours, gates."""
    few, many = draw.choice((1, 2, 3, 3, 4, 5, 6, 7, 8, 10, 13, 16, 20, 27, 32)), draw_size(draw, 16, 1024)
    inputs, outputs = draw.choice(((few, many), (few, many), (many, few), (few, draw_few(draw))))
    rows = round(math.exp(draw.uniform(math.log(100), math.log(1 << 20))))
    shape: Shape = draw.choice(((rows, inputs), (draw.choice((1, 2, 8, 32)), max(1, rows // 32), inputs)))
    written = math.prod(shape) // inputs * outputs
    return nn.Linear(inputs, outputs, bias=draw.random() < 0.8), [shape], work(written * inputs, written)


def _tokens(draw: random.Random) -> Drawn:
    """A linear layer on tokens of small and middling networks; some are views of longer tensors."""
    inputs = draw.choice((32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512, 768, draw_size(draw, 16, 1024)))
    outputs = draw.choice((inputs, inputs, 2 * inputs, 3 * inputs, 4 * inputs, draw_size(draw, 16, 1024)))
    batch, tokens = (
        _rows(draw),
        draw.choice((8, 16, 24, 25, 32, 49, 50, 64, 77, 96, 100, 128, 196, 197, 200, 256, 512, 1000)),
    )
    layer = nn.Linear(inputs, outputs, bias=draw.random() < 0.8)
    macs = batch * tokens * inputs * outputs
    if draw.random() < 0.3:
        return _Sliced(layer, tokens), [(batch, 2 * tokens, inputs)], macs
    return layer, [(batch, tokens, inputs)], macs


class _Sliced(nn.Module):  # type: ignore[misc]
    """A layer on the first of several tokens."""

    def __init__(self, layer: Any, tokens: int) -> None:
        super().__init__()
        self.layer, self.tokens = layer, tokens

    def forward(self, sequence: Any) -> Any:
        """The result for the first tokens."""
        return self.layer(sequence[:, : self.tokens])


def _einsum(draw: random.Random) -> Drawn:
    equation = draw.choice(_EQUATIONS)
    letters = sorted(set(equation) & set("abcdefghijklmnopqrstuvwxyz"))
    short = (4, 8, 16, 16, 20, 24, 32, 32, 48, 64, 96, 128)
    long = (32, 64, 96, 128, 196, 256, 512, 1000, 1024, 2048)
    usual = {"b": (1, 1, 2, 4, 8, 16, 32, 64), "h": (1, 2, 4, 8, 8, 12, 16), "n": long, "m": long, "r": long}
    if len(letters) > 4:
        usual |= {"n": long[:7], "r": long[:5]}
    sizes = {letter: draw.choice(usual.get(letter, short)) for letter in letters}
    operands, _, result = equation.partition("->")
    shapes = [tuple(sizes[letter] for letter in operand) for operand in operands.split(",")]
    macs = math.prod(sizes.values())
    # some operands are transposed views: PyTorch copies those that it cannot fold into a product
    turned = draw.random() < 0.3

    def contract(first: Any, second: Any) -> Any:
        if turned and first.dim() > 2:
            first = first.transpose(1, 2).contiguous().transpose(1, 2)
        return torch.einsum(equation, first, second)

    return Call(contract), shapes, work(macs, math.prod(sizes[letter] for letter in result))


def _vector_norm(draw: random.Random) -> Drawn:
    """A batch norm over vectors, or a layer norm of few rows."""
    channels = draw_size(draw, 8, 4096)
    rows = draw.choice((_rows(draw), _rows(draw), draw_size(draw, 100, 65536)))
    if draw.random() < 0.6:
        return nn.BatchNorm1d(channels, affine=draw.random() < 0.9), [(rows, channels)], 0
    return nn.LayerNorm(channels), [(rows, channels)], 0


_OVER_ROWS: tuple[Callable[[Any, int], Any], ...] = (
    lambda x, axis: x.amax(axis), lambda x, axis: x.max(axis)[0], lambda x, axis: x.mean(axis),
    lambda x, axis: x.sum(axis), lambda x, axis: x.softmax(axis), lambda x, axis: x.softmax(axis),
    lambda x, axis: x.std(axis), lambda x, axis: functional.normalize(x, dim=axis), lambda x, axis: x.norm(dim=axis),
    lambda x, axis: x.argmax(axis), lambda x, axis: x.cumsum(axis), lambda x, axis: x.logsumexp(axis),
    lambda x, axis: x.topk(min(8, x.shape[axis]), dim=axis)[0], lambda x, axis: x.log_softmax(axis),
    lambda x, axis: x.var(axis, unbiased=False), lambda x, axis: x.min(axis)[0],
)  # fmt: skip


def _over_rows(draw: random.Random) -> Drawn:
    """A reduction, softmax or sorting along an axis of a tensor that may be transposed."""
    function, rank = draw.choice(_OVER_ROWS), draw.choice((2, 3, 3, 4, 4))
    sizes = (3, 4, 8, 10, 16, 16, 20, 32, 40, 64, 64, 100, 128, 196, 256, 512, 1024, 2048)
    shape = (draw.choice((1, 2, 4, 8, 16, 32)), *(draw.choice(sizes) for _ in range(rank - 1)))
    axis, turned = draw.randrange(1, rank), draw.random() < 0.5

    def reduce(operand: Any) -> Any:
        # a transposed view of the noise: nothing is copied
        return function(operand.transpose(1, -1) if turned and operand.dim() > 2 else operand, axis)

    return Call(reduce), [shape], 0


_FUNCTIONS: tuple[Callable[[Any], Any], ...] = (
    functional.softplus, functional.elu, functional.selu, functional.mish, functional.logsigmoid, torch.sin, torch.cos,
    torch.exp, torch.log1p, torch.sigmoid, torch.tanh, functional.silu, functional.gelu, torch.square, torch.sqrt,
    lambda x: x.clamp(-1, 1), lambda x: x**2, lambda x: x**3, lambda x: 1 / (x + 2), lambda x: x.abs().sqrt(),
)  # fmt: skip


def _function(draw: random.Random) -> Drawn:
    """A function of every element, some of transposed or sliced views."""
    function, turned = draw.choice(_FUNCTIONS), draw.choice(("no", "no", "no", "transposed", "sliced"))
    shape = (draw.choice((1, 2, 4, 8, 16, 32)), draw_size(draw, 4, 1024), draw_size(draw, 4, 4096))

    def apply(operand: Any) -> Any:
        if turned == "sliced":
            operand = operand[..., : operand.shape[-1] // 2]
        return function(operand.transpose(1, 2) if turned == "transposed" else operand)

    return Call(apply), [shape], 0


FEW_ROWS: Kinds = MappingProxyType({_few_rows: 40, _narrow: 30, _tokens: 30})
SHORT_SUMS: Kinds = MappingProxyType({_einsum: 100})
LONG_ROWS: Kinds = MappingProxyType({_vector_norm: 25, _over_rows: 55, _function: 20})
