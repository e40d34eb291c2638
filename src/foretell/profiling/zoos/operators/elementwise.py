"""Profiling: chains of element-wise operators, as functional code has them between its layers."""

import random
from types import MappingProxyType
from typing import Any

import torch
from torch.nn import functional

from foretell.profiling.zoos.operators.drawing import Call, Drawn, Kinds, Shape, draw_batch, draw_size, draw_tensor


def _others(draw: random.Random, shape: Shape) -> Shape:
    """The shape of an operand that is broadcast to ``shape``, as networks have them."""
    ones = (1,) * (len(shape) - 2)
    return draw.choice(
        (shape, shape, (1, shape[1], *ones), (shape[0], shape[1], *ones), (shape[-1],), (1, *shape[1:]),
         (*shape[:-1], 1), (shape[0], 1, *shape[2:]), (1,)),
    )  # fmt: skip


def _gate(draw: random.Random) -> Drawn:
    shape = draw_tensor(draw)
    kind = draw.choice(("swish", "scale-shift", "residual", "gate", "modulate", "leaky", "normalise", "lerp"))
    other = _others(draw, shape)

    def compute(one: Any, two: Any) -> Any:
        if kind == "swish":
            return two.sigmoid() * one
        if kind == "scale-shift":
            return one * (1 + two) + two
        if kind == "residual":
            return (one + two) * 0.7071
        if kind == "gate":
            return one.tanh() * torch.sigmoid(two) + one
        if kind == "modulate":
            return (one - two) / (two.abs() + 1e-5).sqrt()
        if kind == "leaky":
            return functional.leaky_relu(one + two, 0.2) * 1.414
        if kind == "lerp":
            return torch.lerp(one, two, 0.1)
        return (one - two) * torch.rsqrt(two.square() + 1e-5)

    return Call(compute), [shape, other], 0


def _choice(draw: random.Random) -> Drawn:
    """``where``, ``masked_fill``, comparisons and clamps."""
    shape = draw_tensor(draw)
    kind = draw.choice(("where", "where-scalar", "fill", "compare", "clamp", "clamp-compare", "both", "cast"))
    other = _others(draw, shape)

    def compute(one: Any, two: Any) -> Any:
        if kind == "where":
            return torch.where(one > two, one, two)
        if kind == "where-scalar":
            return torch.where(two > 0, one, 0.0)
        if kind == "fill":
            return one.masked_fill(two < 0, -1e4)
        if kind == "compare":
            return one >= two
        if kind == "clamp":
            return one.clamp(-1.0, 1.0) + two
        if kind == "clamp-compare":
            return (one.clamp(min=0.0) > 0.5).to(one.dtype) * two
        if kind == "both":
            return (one > 0) & (two > 0)
        return (one.float() * two.float()).to(one.dtype)

    return Call(compute), [shape, other], 0


def _curve(draw: random.Random) -> Drawn:
    """Powers, sines and chains of cheap functions of one operand."""
    shape = draw_tensor(draw)
    kind = draw.choice(
        ("pow2", "pow3", "pow-half", "sin", "cos", "waves", "gelu-by-hand", "log", "exp", "softplus", "sub")
    )

    def compute(x: Any) -> Any:
        if kind.startswith("pow"):
            return x.abs() ** {"pow2": 2, "pow3": 3, "pow-half": 0.5}[kind]
        if kind in ("sin", "cos"):
            return getattr(torch, kind)(30.0 * x)
        if kind == "waves":
            return torch.cat((x.sin(), x.cos()), -1)
        if kind == "gelu-by-hand":
            return 0.5 * x * (1 + torch.tanh(0.79788 * (x + 0.044715 * x.pow(3))))
        if kind == "log":
            return torch.log(x.abs() + 1e-6)
        if kind == "exp":
            return torch.exp(-x.clamp(min=0)) * x
        if kind == "softplus":
            return x * functional.softplus(x).tanh()
        return 1.0 - x

    return Call(compute), [shape], 0


def _scan(draw: random.Random) -> Drawn:
    dim, kind = draw.choice((-1, -1, 1)), draw.choice(("sum", "sum", "prod", "logsum", "max"))
    shape: Shape = (draw_batch(draw), draw.choice((16, 64, 128, 256, 512, 1024, 4096)), draw_size(draw, 1, 1024))

    def compute(x: Any) -> Any:
        if kind == "sum":
            return x.cumsum(dim)
        if kind == "prod":
            return x.cumprod(dim)
        return torch.logcumsumexp(x, dim) if kind == "logsum" else x.cummax(dim)[0]

    return Call(compute), [shape], 0


def _statistics(draw: random.Random) -> Drawn:
    """Norms by hand: of rows, of unit length, of a softmax with a temperature, weighted sums."""
    shape, kind = (
        draw_tensor(draw),
        draw.choice(("rms", "unit", "standard", "softmax", "weighted", "entropy", "logsumexp")),
    )

    def compute(x: Any) -> Any:
        if kind == "rms":
            return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(x.dtype)
        if kind == "unit":
            return functional.normalize(x, dim=1)
        if kind == "standard":
            return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5)
        if kind == "softmax":
            return functional.softmax(x * 5.0, -1)
        if kind == "weighted":
            return (x * x.softmax(1)).sum(1)
        if kind == "entropy":
            return -(x.softmax(-1) * x.log_softmax(-1)).sum(-1)
        return x.logsumexp(-1)

    return Call(compute), [shape], 0


def _rotary(draw: random.Random) -> Drawn:
    """Rotary positions: halves swapped, or neighbours."""
    heads, width = draw.choice((1, 4, 8, 12, 16)), draw.choice((32, 64, 64, 128))
    batch, tokens, halves = draw_batch(draw), draw.choice((64, 128, 256, 512, 1024)), draw.random() < 0.6

    def rotate(x: Any, cosine: Any, sine: Any) -> Any:
        if halves:
            left, right = x.chunk(2, -1)
            turned = torch.cat((-right, left), -1)
        else:
            turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
        return x * cosine + turned * sine

    return Call(rotate), [(batch, heads, tokens, width), (tokens, width), (tokens, width)], 0


ELEMENTWISE: Kinds = MappingProxyType({_gate: 30, _choice: 22, _curve: 20, _scan: 8, _statistics: 15, _rotary: 5})
