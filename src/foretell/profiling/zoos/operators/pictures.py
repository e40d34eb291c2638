"""Profiling: layers of networks that make or segment images and volumes."""

import math
import random
from types import MappingProxyType
from typing import Any

from torch import nn
from torch.nn import functional

from foretell.profiling.zoos.operators.drawing import Call, Drawn, Kinds, Shape, divisor, draw_size, work

_SIDES = (8, 14, 16, 24, 28, 32, 48, 56, 64, 96, 112, 128, 160, 256)
_DEPTHS = (4, 8, 14, 16, 24, 28, 32, 48, 64)


def _batch(draw: random.Random) -> int:
    return draw.choice((1, 1, 2, 4, 8, 16, 32))


def _image(draw: random.Random, channels: int) -> Shape:
    side = draw.choice(_SIDES)
    return _batch(draw), channels, side, draw.choice((side, side, side, 2 * side))


def _volume(draw: random.Random, channels: int) -> Shape:
    side = draw.choice(_DEPTHS)
    return draw.choice((1, 1, 2, 4)), channels, draw.choice((side, side, 4, 8, 16)), side, side


def _dilated(draw: random.Random) -> Drawn:
    channels = draw_size(draw, 8, 512)
    filters = draw.choice((channels, channels, draw_size(draw, 8, 512)))
    kernel, dilation = draw.choice((3, 3, 3, 5)), draw.choice((2, 2, 4, 6, 8, 12, 16, 18))
    groups = draw.choice((1, 1, 1, channels))
    filters = channels if groups > 1 else filters
    shape = _image(draw, channels)
    layer = nn.Conv2d(
        channels, filters, kernel, 1, dilation * (kernel // 2), dilation, groups, bias=draw.random() < 0.5
    )
    written = math.prod(shape) // channels * filters
    return layer, [shape], work(written * (channels // groups) * kernel * kernel, written)


def _transposed(draw: random.Random) -> Drawn:
    channels = draw_size(draw, 8, 512)
    filters = draw.choice((channels, max(1, channels // 2), max(1, channels // 2), 1, 3))
    kernel, stride = draw.choice(((2, 2), (3, 2), (4, 2), (4, 2), (4, 2), (5, 2), (3, 1), (4, 4), (8, 4)))
    shape = _image(draw, channels)
    padding = max(0, (kernel - stride) // 2)
    layer = nn.ConvTranspose2d(channels, filters, kernel, stride, padding, bias=draw.random() < 0.5)
    written = math.prod(shape) // channels * filters * stride * stride
    return layer, [shape], work(math.prod(shape) * filters * kernel * kernel, written)


class _Block(nn.Module):  # type: ignore[misc]
    """A convolution, its norm and its activation."""

    def __init__(self, convolution: Any, norm: Any, slope: float) -> None:
        super().__init__()
        self.convolution, self.norm, self.slope = convolution, norm, slope

    def forward(self, image: Any) -> Any:
        """The activations."""
        return functional.leaky_relu(self.norm(self.convolution(image)), self.slope)


def _block(draw: random.Random) -> Drawn:
    """A convolution and a norm in two or three dimensions, as generators and segmenters have them."""
    volume = draw.random() < 0.5
    channels = draw_size(draw, 4, 256 if volume else 512)
    filters = draw.choice((channels, 2 * channels, max(4, channels // 2)))
    shape = _volume(draw, channels) if volume else _image(draw, channels)
    kernel, stride = draw.choice(((3, 1), (3, 1), (3, 2), (1, 1), (7, 1)))
    norms = (nn.InstanceNorm3d, nn.BatchNorm3d) if volume else (nn.InstanceNorm2d, nn.BatchNorm2d)
    kind = draw.choice(("instance", "instance", "batch", "group"))
    if kind == "group":
        norm: Any = nn.GroupNorm(divisor(draw, filters), filters)
    else:
        norm = norms[kind == "batch"](filters, affine=draw.random() < 0.7)
    dims = len(shape) - 2
    convolution = (nn.Conv3d if volume else nn.Conv2d)(channels, filters, kernel, stride, kernel // 2)
    written = math.prod(shape) // channels * filters // stride**dims
    macs = work(written * channels * kernel**dims, written)
    return _Block(convolution, norm, draw.choice((0.01, 0.2))), [shape], macs


def _solid(draw: random.Random) -> Drawn:
    """A convolution in three dimensions: plain, of one axis, strided, transposed or depthwise."""
    channels = draw_size(draw, 1, 256)
    filters = draw.choice((channels, 2 * channels, draw_size(draw, 8, 256)))
    shape = _volume(draw, channels)
    kind = draw.choice(("plain", "plain", "one", "plane", "time", "strided", "transposed", "depthwise"))
    if kind == "transposed":
        layer: Any = nn.ConvTranspose3d(channels, filters, 2, 2)
        return layer, [shape], work(math.prod(shape) * filters * 8, math.prod(shape) // channels * filters * 8)
    kernel = {"one": (1, 1, 1), "plane": (1, 3, 3), "time": (3, 1, 1)}.get(kind, (3, 3, 3))
    groups = channels if kind == "depthwise" else 1
    filters = channels if kind == "depthwise" else filters
    padding = tuple(size // 2 for size in kernel)
    layer = nn.Conv3d(channels, filters, kernel, 2 if kind == "strided" else 1, padding, 1, groups)
    written = math.prod(shape) // channels * filters
    return layer, [shape], work(written * (channels // groups) * math.prod(kernel), written)


def _pool(draw: random.Random) -> Drawn:
    shape = _volume(draw, draw_size(draw, 4, 256))
    layers = (
        nn.MaxPool3d(2), nn.MaxPool3d((1, 2, 2)), nn.AvgPool3d(2), nn.AdaptiveAvgPool3d(1), nn.MaxPool3d(3, 2, 1),
    )  # fmt: skip
    return draw.choice(layers), [shape], 0


def _resize(draw: random.Random) -> Drawn:
    volume, factor = draw.random() < 0.5, draw.choice((2.0, 2.0, 2.0, 4.0, 0.5))
    shape = _volume(draw, draw_size(draw, 4, 128)) if volume else _image(draw, draw_size(draw, 3, 256))
    mode = draw.choice(("nearest", "trilinear" if volume else "bilinear"))
    aligned = draw.random() < 0.4 if mode != "nearest" else None

    def resize(image: Any) -> Any:
        return functional.interpolate(image, scale_factor=factor, mode=mode, align_corners=aligned)

    return Call(resize), [shape], work(0, math.prod(shape) * factor ** (len(shape) - 2))


def _sample(draw: random.Random) -> Drawn:
    shape = _image(draw, draw_size(draw, 1, 128))
    height, width = draw.choice((shape[2:], shape[2:], (28, 28), (64, 64), (shape[2] // 2, shape[3] // 2)))
    mode, padding = draw.choice(("bilinear", "bilinear", "nearest")), draw.choice(("zeros", "border"))

    def sample(image: Any, grid: Any) -> Any:
        return functional.grid_sample(image, grid, mode=mode, padding_mode=padding, align_corners=False)

    return Call(sample), [shape, (shape[0], height, width, 2)], 0


def _rearrange(draw: random.Random) -> Drawn:
    """Pixels to channels and back, windows, and their inverse."""
    factor = draw.choice((2, 2, 2, 3, 4))
    side = draw.choice((8, 12, 24, 48, 96, 144))
    channels = draw_size(draw, 1, 128)
    kind = draw.choice(("shuffle", "shuffle", "unshuffle", "unfold", "fold", "windows"))
    batch = _batch(draw)
    if kind == "shuffle":
        return nn.PixelShuffle(factor), [(batch, channels * factor**2, side, side)], 0
    if kind == "unshuffle":
        return nn.PixelUnshuffle(factor), [(batch, channels, side * factor, side * factor)], 0
    kernel = draw.choice((2, 3, 3, 4, 7))
    if kind == "unfold":
        stride = draw.choice((1, kernel))
        written = batch * channels * (side * kernel // stride) ** 2
        return nn.Unfold(kernel, padding=kernel // 2, stride=stride), [(batch, channels, side, side)], work(0, written)
    if kind == "fold":
        total = side * kernel
        shape = (batch, channels * kernel * kernel, side * side)
        return nn.Fold((total, total), kernel, stride=kernel), [shape], 0

    def windows(image: Any) -> Any:
        split = image.view(batch, side // 4, 4, side // 4, 4, channels)
        return split.permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, channels)

    return Call(windows), [(batch, side, side, channels)], 0


def _pad(draw: random.Random) -> Drawn:
    volume = draw.random() < 0.2
    shape = _volume(draw, draw_size(draw, 1, 128)) if volume else _image(draw, draw_size(draw, 3, 256))
    size, mode = draw.choice((1, 1, 2, 3)), draw.choice(("reflect", "replicate", "constant", "circular"))
    sizes = (size,) * 2 * (len(shape) - 2)

    def pad(image: Any) -> Any:
        return functional.pad(image, sizes, mode=mode)

    return Call(pad), [shape], 0


PICTURES: Kinds = MappingProxyType(
    {
        _dilated: 16, _transposed: 16, _block: 22, _solid: 18, _pool: 4, _resize: 8, _sample: 5, _rearrange: 7, _pad: 4,
    }
)  # fmt: skip
