"""Profiling: what the kinds of operators of a bench share: modules around functions, and usual sizes."""

import math
import random
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

Shape = tuple[int, ...]
Drawn = tuple[Any, list[Shape], int]  # a module, the shapes of its operands, and an estimate of its MACs
Kinds = Mapping[Callable[[random.Random], Drawn], float]  # how to draw a kind of operator, and its weight

_MACS_PER_ELEMENT = 200  # about what an H200 computes in half precision while it writes one element


class Call(nn.Module):  # type: ignore[misc]
    """A function as a module, so that its calls have a name in a trace."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *operands: Any) -> Any:
        """The result of the function."""
        return self.function(*operands)


class First(nn.Module):  # type: ignore[misc]
    """A layer with several results, of which the first is used."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, operand: Any) -> Any:
        """The first result."""
        return self.layer(operand)[0]


class ChannelsLast(nn.Module):  # type: ignore[misc]
    """A convolution of an image with channels last."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, image: Any) -> Any:
        """The result of the layer."""
        return self.layer(image.permute(0, 3, 1, 2))


def draw_size(draw: random.Random, low: int, high: int, step: int = 8) -> int:
    """A size between two bounds, uniform in its logarithm; mostly a multiple of ``step``."""
    size = math.exp(draw.uniform(math.log(low), math.log(high)))
    if draw.random() < 0.8 and size >= step:
        return max(step, round(size / step) * step)
    return max(low, round(size))


def draw_few(draw: random.Random) -> int:
    """A small number."""
    return draw.choice((1, 2, 3, 4, 6, 8, 12, 16))


def draw_batch(draw: random.Random) -> int:
    """A batch size."""
    return draw.choice((1, 1, 2, 4, 8, 16, 32, 64, 128))


def draw_image(draw: random.Random, channels: int) -> Shape:
    """A batch of square images or feature maps."""
    side = draw.choice((7, 7, 8, 10, 12, 14, 14, 16, 20, 24, 28, 28, 32, 48, 56, 56, 64, 96, 112, 128, 224))
    return draw_batch(draw), channels, side, side


def draw_tensor(draw: random.Random) -> Shape:
    """A batch of images or of tokens."""
    channels = draw_size(draw, 8, 2048)
    if draw.random() < 0.6:
        return draw_image(draw, channels)
    return draw_batch(draw), draw.choice((1, 49, 64, 196, 256, 512, 1024, 3136)), channels


def work(macs: float, written: float = 0) -> int:
    """The MACs of an operator, or those that a GPU computes while it writes the results, if these are more."""
    return int(max(macs, _MACS_PER_ELEMENT * written))


def divisor(draw: random.Random, size: int) -> int:
    """A usual number of groups that divides ``size``."""
    return draw.choice([groups for groups in (1, 2, 3, 4, 8, 16, 32, 64) if size % groups == 0])
