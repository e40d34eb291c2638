"""Profiling: rows that are picked from tables and added to them, and what sorts, ranks and counts."""

import math
import random
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from foretell.profiling.zoos.operators.drawing import Call, Drawn, Kinds, Shape, draw_batch, draw_size, work

_MAX_TABLE = 1 << 26


class _Indexed(nn.Module):  # type: ignore[misc]
    """A function of random indices, which are drawn when it is built, and of operands."""

    def __init__(self, function: Callable[..., Any], indices: Shape, rows: int) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("indices", torch.randint(0, rows, indices))

    def forward(self, *operands: Any) -> Any:
        """The result of the function."""
        return self.function(self.indices, *operands)


class _Table(nn.Module):  # type: ignore[misc]
    """A layer with a table of its own, and indices into it."""

    def __init__(self, layer: Any, indices: Shape, rows: int, then: Callable[[Any], Any] | None = None) -> None:
        super().__init__()
        self.layer, self.then = layer, then
        self.register_buffer("indices", torch.randint(0, rows, indices))

    def forward(self) -> Any:
        """The rows that were picked."""
        rows = self.layer(self.indices)
        return rows if self.then is None else self.then(rows)


def _rows(draw: random.Random, width: int) -> int:
    return min(draw_size(draw, 100, 1_000_000), _MAX_TABLE // width)


def _picked(draw: random.Random) -> Shape:
    return draw.choice(
        ((draw_batch(draw), draw.choice((1, 4, 16, 26, 50, 100, 128, 200, 512))), (draw_batch(draw) * 64,))
    )


def _embedding(draw: random.Random) -> Drawn:
    """Rows of a large table; in a recommender followed by their products with each other."""
    width = draw.choice((16, 16, 32, 64, 64, 128, 256, 384, 512))
    rows, indices = _rows(draw, width), _picked(draw)
    kind = draw.choice(("plain", "plain", "dots", "sum", "mean"))

    def then(picked: Any) -> Any:
        if kind == "dots" and picked.ndim == 3:
            return torch.bmm(picked, picked.transpose(1, 2))
        return picked.sum(-2) if kind == "sum" else picked.mean(-2) if kind == "mean" else picked

    return _Table(nn.Embedding(rows, width), indices, rows, then), [], work(0, math.prod(indices) * width)


def _bag(draw: random.Random) -> Drawn:
    width = draw.choice((8, 16, 32, 64, 128, 256))
    rows = _rows(draw, width)
    indices = (draw_batch(draw) * draw.choice((1, 8, 64)), draw.choice((1, 2, 5, 10, 20, 50, 100)))
    return _Table(nn.EmbeddingBag(rows, width, mode=draw.choice(("sum", "mean", "mean"))), indices, rows), [], 0


def _select(draw: random.Random) -> Drawn:
    """Rows of an activation: edges of a graph, tokens of an expert, neighbours of a point."""
    width, rows = draw.choice((3, 8, 16, 32, 64, 128, 256, 512)), draw_size(draw, 64, 100_000)
    count = draw_size(draw, 64, 300_000)
    kind = draw.choice(("index_select", "index", "gather", "take-batched", "pairs"))
    batch = draw.choice((1, 2, 4, 8, 16))
    if kind == "gather":
        rows, count = min(rows, 8192), min(count, 8192)
        function = lambda indices, table: table.gather(1, indices.unsqueeze(-1).expand(-1, -1, width))  # noqa: E731
        return _Indexed(function, (batch, count), rows), [(batch, rows, width)], work(0, batch * count * width)
    if kind == "take-batched":
        rows, near = min(rows, 8192), draw.choice((8, 16, 20, 32))
        points = draw.choice((128, 512, 1024, 2048))
        function = lambda indices, table: table[torch.arange(batch, device=table.device)[:, None, None], indices]  # noqa: E731
        written = batch * points * near * width
        return _Indexed(function, (batch, points, near), rows), [(batch, rows, width)], work(0, written)
    if kind == "pairs":
        function = lambda indices, table: (table[indices[0]] - table[indices[1]]).square().sum(-1)  # noqa: E731
        return _Indexed(function, (2, count), rows), [(rows, width)], work(0, count * width)
    if kind == "index":
        return _Indexed(lambda indices, table: table[indices], (count,), rows), [(rows, width)], work(0, count * width)
    select = lambda indices, table: table.index_select(0, indices)  # noqa: E731
    return _Indexed(select, (count,), rows), [(rows, width)], work(0, count * width)


def _scatter(draw: random.Random) -> Drawn:
    """Messages that are added up at the nodes of a graph."""
    width, rows = draw.choice((1, 3, 8, 16, 32, 64, 128, 256)), draw_size(draw, 64, 50_000)
    count = draw_size(draw, 64, 200_000)
    kind = draw.choice(("index_add", "index_add", "scatter_add", "scatter_mean", "scatter_max"))

    def add(indices: Any, messages: Any) -> Any:
        nothing = messages.new_zeros(rows, width)
        if kind == "index_add":
            return nothing.index_add(0, indices, messages)
        wide = indices.unsqueeze(-1).expand(-1, width)
        if kind == "scatter_add":
            return nothing.scatter_add(0, wide, messages)
        reduce = "mean" if kind == "scatter_mean" else "amax"
        return nothing.scatter_reduce(0, wide, messages, reduce, include_self=False)

    return _Indexed(add, (count,), rows), [(count, width)], 0


def _rank(draw: random.Random) -> Drawn:
    kind = draw.choice(("topk", "topk", "sort", "argsort", "argmax", "argmax", "max"))
    length = draw.choice((8, 16, 64, 100, 256, 1000, 1024, 4096, 8192))
    shape: Shape = (draw_batch(draw), draw.choice((1, 16, 64, 196, 512, 1024)), length)
    count, dim = min(draw.choice((1, 2, 4, 8, 20, 100)), length), draw.choice((-1, -1, 1))

    def rank(scores: Any) -> Any:
        if kind == "topk":
            return scores.topk(count, -1)[0]
        if kind == "sort":
            return scores.sort(-1)[0]
        return scores.max(dim)[0] if kind == "max" else getattr(scores, kind)(dim)

    return Call(rank), [shape], 0


def _one_hot(draw: random.Random) -> Drawn:
    classes, width = draw.choice((4, 8, 10, 16, 64, 100, 512)), draw.choice((16, 32, 64, 128))
    indices = (draw_batch(draw), draw.choice((16, 64, 196, 512, 1024)))
    kind = draw.choice(("plain", "float", "product", "equal"))

    def encode(indices: Any, table: Any) -> Any:
        if kind == "equal":
            return (indices.unsqueeze(-1) == torch.arange(classes, device=indices.device)).to(table.dtype)
        encoded = functional.one_hot(indices, classes)
        return encoded if kind == "plain" else encoded.to(table.dtype) @ table if kind == "product" else encoded.float()

    return _Indexed(encode, indices, classes), [(classes, width)], work(0, math.prod(indices) * classes)


def _experts(draw: random.Random) -> Drawn:
    """Weights that are picked for each item, and a batched product with them."""
    experts, inputs, outputs = (
        draw.choice((4, 8, 16, 64)),
        draw.choice((16, 32, 64, 128, 256)),
        draw.choice((16, 64, 128, 256)),
    )
    items = draw.choice((4, 16, 64, 256, 1024))
    product = lambda indices, x, weights: torch.bmm(x.unsqueeze(1), weights[indices]).squeeze(1)  # noqa: E731
    written = items * inputs * outputs  # the weights are copied for each item
    return _Indexed(product, (items,), experts), [(items, inputs), (experts, inputs, outputs)], work(0, written)


GATHERS: Kinds = MappingProxyType(
    {_embedding: 22, _bag: 12, _select: 20, _scatter: 16, _rank: 18, _one_hot: 6, _experts: 6}
)
