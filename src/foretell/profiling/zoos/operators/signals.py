"""Profiling: layers over long signals and over volumes: 1-D convolutions, and norms and pools of one and three axes."""

import math
import random
from types import MappingProxyType
from typing import Any

from torch import nn
from torch.nn import functional

from foretell.profiling.zoos.operators.drawing import Call, Drawn, Kinds, Shape, divisor, draw_size, work

_LENGTHS = (4000, 4096, 8000, 8192, 16000, 16384, 22050, 32000, 44100, 48000, 64000, 80000, 96000, 160000)
_FRAMES = (64, 100, 128, 250, 256, 500, 512, 800, 1000, 1024, 1500, 2048, 3000)
_SIDES = (4, 8, 14, 16, 24, 28, 32, 48, 64)


def _batch(draw: random.Random) -> int:
    return draw.choice((1, 1, 1, 2, 4, 4, 8, 16, 32))


def _signal(draw: random.Random) -> tuple[int, int]:
    """Channels and length: long signals have few channels, frames have many."""
    if draw.random() < 0.65:
        return draw.choice((1, 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)), draw.choice(_LENGTHS)
    return draw_size(draw, 16, 1024), draw.choice(_FRAMES)


def _convolution(draw: random.Random) -> Drawn:
    channels, length = _signal(draw)
    filters = draw.choice((channels, channels, 2 * channels, draw_size(draw, 8, 512), 1, 16, 32, 64))
    kernel = draw.choice((1, 2, 3, 3, 3, 5, 7, 8, 9, 11, 15, 16, 25, 31))
    stride, dilation, groups = 1, 1, 1
    kind = draw.choice(("plain", "plain", "strided", "dilated", "depthwise", "grouped"))
    if kind == "strided":
        stride = draw.choice((2, 2, 4, 4, 5, 8, 10, 160))
        kernel = draw.choice((stride, 2 * stride, stride + 1, kernel))
    elif kind == "dilated":
        kernel, dilation = draw.choice((2, 3, 3, 5, 7)), draw.choice((2, 3, 4, 5, 8, 9, 16, 27, 32, 64, 128, 256, 512))
    elif kind == "depthwise":
        groups, filters, kernel = channels, channels, draw.choice((3, 3, 4, 5, 7, 9, 15, 31, 64))
        dilation = draw.choice((1, 1, 2, 8))
    elif kind == "grouped":
        groups = divisor(draw, channels)
        filters = draw.choice((channels, 2 * channels))
    padding = draw.choice((0, dilation * (kernel - 1) // 2))
    if dilation * (kernel - 1) + 1 > length:
        dilation = 1
    layer = nn.Conv1d(channels, filters, kernel, stride, padding, dilation, groups, draw.random() < 0.7)
    shape = (_batch(draw), channels, length)
    written = math.prod(shape) // channels * filters // stride
    return layer, [shape], work(written * (channels // groups) * kernel, written)


def _transposed(draw: random.Random) -> Drawn:
    channels, length = draw_size(draw, 8, 512), draw.choice((*_FRAMES, 4000, 8000, 16000, 32000))
    stride = draw.choice((2, 2, 4, 5, 8, 8, 10))
    kernel = draw.choice((stride, 2 * stride, 2 * stride, stride + 2))
    filters = draw.choice((max(1, channels // 2), max(1, channels // 2), channels, 1))
    shape = (_batch(draw), channels, length)
    layer = nn.ConvTranspose1d(channels, filters, kernel, stride, (kernel - stride) // 2, bias=draw.random() < 0.7)
    written = math.prod(shape) // channels * filters * stride
    return layer, [shape], work(math.prod(shape) * filters * kernel, written)


def _volume(draw: random.Random, channels: int) -> Shape:
    side = draw.choice(_SIDES)
    return _batch(draw), channels, draw.choice((side, side, 4, 8, 16)), side, side


def _norm(draw: random.Random) -> Drawn:
    """A norm over a signal, a volume or an image, with few or with many groups."""
    dims = draw.choice((1, 1, 1, 3, 3, 2))
    channels, length = _signal(draw)
    if dims == 3:
        shape: Shape = _volume(draw, draw_size(draw, 8, 512))
    elif dims == 2:
        side = draw.choice((16, 28, 32, 56, 64, 112, 128, 256))
        shape = (_batch(draw), draw_size(draw, 8, 512), side, side)
    else:
        shape = (_batch(draw), channels, length)
    kind = draw.choice(("group", "group", "group", "instance", "batch", "layer"))
    channels = shape[1]
    if kind == "group":
        groups = draw.choice((1, 1, channels, divisor(draw, channels), divisor(draw, channels)))
        return nn.GroupNorm(groups, channels, affine=draw.random() < 0.9), [shape], 0
    if kind == "layer" and dims == 1:
        return nn.LayerNorm(channels), [(shape[0], shape[2], channels)], 0
    names = {"instance": (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)}
    layer = names.get(kind, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d))[dims - 1]
    return layer(channels, affine=draw.random() < 0.6), [shape], 0


def _whole_norm(draw: random.Random) -> Drawn:
    """A layer norm over all but the batch, or over the channels of a signal that is transposed for it and back."""
    channels, length = _signal(draw)
    if draw.random() < 0.4:
        return nn.LayerNorm([channels, length]), [(_batch(draw), channels, length)], 0
    norm = nn.LayerNorm(channels)

    class Transposed(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm = norm

        def forward(self, signal: Any) -> Any:
            return self.norm(signal.transpose(1, 2)).transpose(1, 2)

    return Transposed(), [(_batch(draw), channels, length)], 0


def _pool(draw: random.Random) -> Drawn:
    channels, length = _signal(draw)
    kernel = draw.choice((2, 2, 3, 4, 5, 8, 25))
    stride = draw.choice((kernel, kernel, 2, 1))
    layers = (
        nn.MaxPool1d(kernel, stride, kernel // 2),
        nn.AvgPool1d(kernel, stride, kernel // 2),
        nn.AdaptiveAvgPool1d(draw.choice((1, 1, 16, 64))),
        nn.AdaptiveMaxPool1d(1),
    )
    layer = draw.choice((layers[0], layers[0], layers[1], layers[1], layers[2], layers[3]))
    return layer, [(_batch(draw), channels, length)], 0


def _resize(draw: random.Random) -> Drawn:
    channels, length = _signal(draw)
    factor, mode = draw.choice((2.0, 2.0, 4.0, 0.5)), draw.choice(("nearest", "linear"))

    def resize(signal: Any) -> Any:
        return functional.interpolate(signal, scale_factor=factor, mode=mode)

    shape = (_batch(draw), channels, length)
    return Call(resize), [shape], work(0, math.prod(shape) * factor)


def _pad(draw: random.Random) -> Drawn:
    channels, length = _signal(draw)
    left, right = draw.choice((1, 2, 3, 16, 31)), draw.choice((0, 1, 3, 16))
    mode = draw.choice(("constant", "reflect", "replicate"))

    def pad(signal: Any) -> Any:
        return functional.pad(signal, (left, right), mode=mode)

    return Call(pad), [(_batch(draw), channels, length)], 0


def _gated(draw: random.Random) -> Drawn:
    """The gate of a wave network: a tangent times a sigmoid of halves, or a GLU."""
    channels, length = _signal(draw)
    kind = draw.choice(("wave", "glu", "snake"))

    def gate(signal: Any) -> Any:
        if kind == "glu":
            return functional.glu(signal, 1)
        if kind == "snake":
            return signal + (2.0 * signal).sin().square() * 0.5
        left, right = signal.chunk(2, 1)
        return left.tanh() * right.sigmoid()

    return Call(gate), [(_batch(draw), 2 * channels, length)], 0


SIGNALS: Kinds = MappingProxyType(
    {
        _convolution: 44, _transposed: 12, _norm: 22, _whole_norm: 4, _pool: 5, _resize: 3, _pad: 4, _gated: 6,
    }
)  # fmt: skip
NORMS: Kinds = MappingProxyType({_norm: 90, _whole_norm: 10})
