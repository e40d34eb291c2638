"""Profiling: convolutions where libraries change kernels: first layers, transposed ones, and plain ones of any size.

The first layer of a network has few channels and often a large window with a stride: patches of images, stems, frames
of raw audio. Transposed convolutions are drawn in one, two and three dimensions, with windows of once and twice their
stride. Plain ones have the sizes of feature maps in users' networks, odd numbers of channels among them.
"""

import math
import random
from types import MappingProxyType
from typing import Any

from torch import nn

from foretell.profiling.zoos.operators.drawing import Drawn, Kinds, Shape, divisor, draw_few, draw_size, work

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
# per number of axes: how long an input is, and how long a feature map
_INPUTS = (
    (250, 1000, 4000, 8000, 16000, 16384, 32000, 48000, 65536),
    (20, 28, 32, 64, 84, 96, 112, 128, 160, 192, 224, 256, 320, 384, 512),
    (8, 16, 24, 32, 48, 64, 96),
)
_MAPS = (
    (32, 64, 100, 128, 250, 256, 500, 512, 1000, 1024, 2048, 4096, 8192, 16384),
    (4, 5, 7, 8, 9, 10, 12, 14, 15, 16, 19, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160),
    (4, 6, 7, 8, 12, 14, 16, 24, 28, 32, 48),
)


def _batch(draw: random.Random) -> int:
    return draw.choice((1, 1, 2, 2, 4, 8, 8, 16, 32, 64))


def _shape(draw: random.Random, dims: int, channels: int, sides: tuple[tuple[int, ...], ...]) -> Shape:
    side = draw.choice(sides[dims - 1])
    other = draw.choice((side, side, side, side, 2 * side, draw.choice(sides[dims - 1]))) if dims == 2 else side
    return (_batch(draw), channels, side) if dims == 1 else (_batch(draw), channels, *(side,) * (dims - 2), side, other)


def _drawn(layer: Any, shape: Shape, dims: int, stride: int, kernel: int) -> Drawn:
    written = math.prod(shape) // shape[1] * layer.out_channels // stride**dims
    return layer, [shape], work(written * (shape[1] // layer.groups) * kernel**dims, written)


def _first_layer(draw: random.Random) -> Drawn:
    """A window over one to sixteen channels: patches, stems with strides, and plain first layers."""
    dims = draw.choice((1, 2, 2, 2, 2, 3))
    channels = draw.choice((1, 1, 2, 3, 3, 3, 3, 4, 6, 8, 9, 12, 13, 16))
    filters = draw.choice((16, 24, 32, 48, 64, 64, 96, 128, 192, 256, 384, 512, 768, draw_size(draw, 4, 1024)))
    shape = _shape(draw, dims, channels, _INPUTS)
    kind = draw.choice(("patches", "stem", "stem", "plain"))
    if kind == "patches":
        kernel = stride = draw.choice(((4, 10, 16, 160, 320), (2, 4, 4, 7, 8, 14, 16, 16, 32), (2, 4, 8, 16))[dims - 1])
    elif kind == "stem":
        kernel = draw.choice(((7, 15, 25, 31, 64, 80), (3, 4, 5, 5, 7, 7, 8, 9, 11), (3, 5, 7))[dims - 1])
        stride = draw.choice((2, 2, 2, 4, max(1, kernel // 2)))
    else:
        kernel, stride = draw.choice((1, 3, 3, 3, 5, 7, 9)), 1
    while kernel > min(shape[2:]):
        kernel //= 2
    padding = 0 if kind == "patches" else draw.choice((kernel // 2, kernel // 2, 0))
    layer = _CONVOLUTIONS[dims - 1](channels, filters, kernel, stride, padding, bias=draw.random() < 0.6)
    return _drawn(layer, shape, dims, stride, kernel)


def _transposed(draw: random.Random) -> Drawn:
    dims = draw.choice((1, 1, 1, 2, 2, 2, 3))
    channels = draw_size(draw, 4, 768)
    filters = draw.choice(
        (channels, max(1, channels // 2), max(1, channels // 2), draw_size(draw, 1, 256), draw_few(draw))
    )
    stride = draw.choice(((2, 2, 3, 4, 4, 5, 8, 8, 10, 16), (1, 2, 2, 2, 2, 3, 4, 4, 8, 16), (2, 2, 2, 4))[dims - 1])
    kernel = draw.choice((stride, 2 * stride, 2 * stride, stride + 1, stride + 2, 3))
    kernel = max(kernel, stride)
    shape = _shape(draw, dims, channels, _MAPS)
    layer = _TRANSPOSED[dims - 1](channels, filters, kernel, stride, (kernel - stride) // 2, bias=draw.random() < 0.6)
    written = math.prod(shape) // channels * filters * stride**dims
    return layer, [shape], work(math.prod(shape) * filters * kernel**dims, written)


def _plain(draw: random.Random) -> Drawn:
    dims = draw.choice((1, 1, 2, 2, 2, 2, 3))
    channels = draw_size(draw, 8, (1024, 1024, 320)[dims - 1])
    filters = draw.choice(
        (channels, channels, 2 * channels, max(1, channels // 2), draw_size(draw, 4, 768), draw_few(draw))
    )
    kernel = draw.choice((1, 1, 3, 3, 3, 3, 5, 7) if dims > 1 else (1, 3, 3, 5, 7, 9, 15, 16, 17, 31))
    stride, dilation = draw.choice((1, 1, 1, 1, 2)), draw.choice((1, 1, 1, 1, 1, 2, 4))
    groups = draw.choice((1, 1, 1, 1, 1, channels, divisor(draw, channels)))
    if groups > 1:
        filters = channels if groups == channels else -(-filters // groups) * groups
    shape = _shape(draw, dims, channels, _MAPS)
    while dilation * (kernel - 1) >= shape[-1]:
        kernel, dilation = max(1, kernel // 2), 1
    padding = dilation * (kernel // 2)
    layer = _CONVOLUTIONS[dims - 1](
        channels, filters, kernel, stride, padding, dilation, groups, bias=draw.random() < 0.5
    )
    return _drawn(layer, shape, dims, stride, kernel)


FIRST_LAYERS: Kinds = MappingProxyType({_first_layer: 100})
TRANSPOSED: Kinds = MappingProxyType({_transposed: 100})
CONVOLUTIONS: Kinds = MappingProxyType({_plain: 100})
