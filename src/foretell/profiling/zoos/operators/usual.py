"""Profiling: operators as published networks use them: the kinds of the first benches, which never change."""

import math
import random
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from foretell.profiling.zoos.operators.drawing import (
    Call,
    ChannelsLast,
    Drawn,
    First,
    Kinds,
    Shape,
    draw_batch,
    draw_few,
    draw_image,
    draw_size,
    draw_tensor,
)


def _convolution(draw: random.Random, *, grouped: bool = False) -> Drawn:
    dims = draw.choice((2, 2, 2, 2, 2, 2, 1, 3, 3))
    kernel = draw.choice((1, 1, 1, 3, 3, 3, 5, 7))
    stride = draw.choice((1, 1, 1, 2))
    kind = draw.choice(("dense", "dense", "dense", "depthwise", "depthwise", "grouped"))
    if grouped:
        kind = "grouped"
        kernel = draw.choice((3, 15, 31, 128)) if dims == 1 else kernel
    channels, filters = draw_size(draw, 3, 1536), draw_size(draw, 8, 1536)
    if draw.random() < 0.15:
        channels, filters = draw.choice(
            ((draw_few(draw), filters), (channels, draw_few(draw)), (draw_few(draw), draw_few(draw)))
        )
    groups = 1
    if kind == "depthwise":
        groups, filters, kernel = channels, channels, draw.choice((3, 3, 5, 7, 7, 9, 11))
    elif kind == "grouped":
        groups = draw.choice((2, 4, 8, 16, 24, 32))
        channels = max(groups, channels // groups * groups)
        filters = draw.choice((channels, max(groups, filters // groups * groups)))
    side = {1: (64, 100, 128, 512, 1000, 4096), 2: (), 3: (4, 8, 14, 16, 28)}[dims]
    shape = draw_image(draw, channels) if dims == 2 else (draw_batch(draw), channels, *(draw.choice(side),) * dims)
    dilation = draw.choice((1, 1, 1, 1, 2))
    while (kernel - 1) * dilation + 1 > shape[-1] + 2 * (dilation * (kernel // 2)):
        kernel -= 2
    layer = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    padding = dilation * (kernel // 2)
    bias = draw.random() < 0.5
    module = layer(channels, filters, kernel, stride, padding, dilation, groups, bias)
    macs = math.prod(shape) // channels * filters * (channels // groups) * kernel**dims
    if dims == 2 and draw.random() < 0.25:
        batch, _, *sides = shape
        return ChannelsLast(module), [(batch, *sides, channels)], macs
    return module, [shape], macs


def _grouped(draw: random.Random) -> Drawn:
    return _convolution(draw, grouped=True)


def _transposed(draw: random.Random) -> Drawn:
    channels, filters = draw_size(draw, 8, 512), draw_size(draw, 8, 512)
    shape = draw_image(draw, channels)
    kernel = draw.choice((2, 2, 3, 4))
    module = nn.ConvTranspose2d(channels, filters, kernel, 2, 1 if kernel == 4 else 0)
    return module, [shape], math.prod(shape) * filters * kernel * kernel


def _linear(draw: random.Random) -> Drawn:
    inputs, outputs = draw_size(draw, 8, 8192), draw_size(draw, 8, 8192)
    if draw.random() < 0.3:  # unusual sizes: libraries use other kernels for odd ones
        inputs, outputs = (round(math.exp(draw.uniform(0, math.log(16384)))) for _ in range(2))
    rows: Shape = draw.choice(
        ((draw_batch(draw),), (draw_batch(draw), draw.choice((16, 49, 64, 128, 197, 256, 512, 1024))))
    )
    module = nn.Linear(inputs, outputs, bias=draw.random() < 0.7)
    return module, [(*rows, inputs)], math.prod(rows) * inputs * outputs


def _product(draw: random.Random) -> Drawn:
    many = (draw_batch(draw), draw.choice((1, 2, 4, 8, 12, 16, 32)))
    rows, inner, columns = draw_size(draw, 1, 1024), draw_size(draw, 8, 1024), draw_size(draw, 1, 1024)
    shapes: list[Shape] = [(*many, rows, inner), (*many, inner, columns)]
    return Call(torch.matmul), shapes, math.prod(many) * rows * inner * columns


def _attention(draw: random.Random) -> Drawn:
    heads, width = (
        draw.choice((1, 2, 3, 4, 6, 8, 12, 16, 32)),
        draw.choice((16, 24, 32, 40, 48, 64, 64, 64, 80, 96, 128)),
    )
    queries = draw.choice((1, 1, 16, 49, 49, 64, 100, 144, 196, 197, 256, 512, 577, 1024, 2048))
    keys = queries if queries > 1 and draw.random() < 0.8 else draw.choice((49, 64, 196, 256, 1024, 4096))
    batch = draw.choice((1, 2, 4, 8, 16, 32, 64, 256))
    shapes: list[Shape] = [(batch, heads, queries, width), (batch, heads, keys, width), (batch, heads, keys, width)]
    mask = draw.choice(("none", "none", "causal", "bias", "rows", "keys"))
    causal = mask == "causal" and queries == keys
    if mask == "bias":
        shapes.append((1, heads, queries, keys))
    elif mask == "rows":
        shapes.append((batch, heads, queries, keys))
    elif mask == "keys":
        shapes.append((batch, 1, 1, keys))

    def attend(query: Any, key: Any, value: Any, bias: Any = None) -> Any:
        return functional.scaled_dot_product_attention(query, key, value, bias, is_causal=causal)

    return Call(attend), shapes, 2 * batch * heads * queries * keys * width


def _recurrent(draw: random.Random) -> Drawn:
    layers, both = draw.choice((1, 1, 1, 2, 3)), draw.random() < 0.3
    steps = draw.choice((8, 16, 32, 50, 64, 100, 128))
    inputs, hidden = draw_size(draw, 16, 1024), draw_size(draw, 16, 1024)
    kind = draw.choice((nn.LSTM, nn.LSTM, nn.GRU, nn.RNN))
    layer = kind(inputs, hidden, layers, batch_first=True, bidirectional=both)
    batch = draw_batch(draw)
    gates = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}[kind]
    macs = batch * steps * layers * (1 + both) * gates * hidden * (inputs + hidden)
    return First(layer), [(batch, steps, inputs)], macs


def _norm(draw: random.Random) -> Drawn:
    channels = draw_size(draw, 8, 2048)
    kind = draw.choice(("batch", "batch", "layer", "layer", "layer", "group", "group", "instance", "rms"))
    if kind in ("layer", "rms"):
        shape: Shape = (draw_batch(draw), draw.choice((1, 49, 64, 196, 197, 256, 512, 1024, 3136)), channels)
        return (nn.LayerNorm if kind == "layer" else nn.RMSNorm)(channels), [shape], 0
    shape = draw_image(draw, channels)
    if kind == "group":
        groups = draw.choice([g for g in (1, 1, 2, 4, 8, 16, 32, 64) if channels % g == 0])
        return nn.GroupNorm(groups, channels), [shape], 0
    return (nn.BatchNorm2d if kind == "batch" else nn.InstanceNorm2d)(channels), [shape], 0


_FUNCTIONS: tuple[Callable[[Any], Any], ...] = (
    functional.relu, functional.gelu, functional.silu, functional.hardswish, functional.sigmoid, torch.tanh,
    functional.leaky_relu, functional.relu6, functional.hardsigmoid, functional.elu, functional.mish, torch.exp,
    torch.sqrt, torch.neg, torch.erf, functional.softplus, torch.abs, torch.rsqrt,
)  # fmt: skip


def _unary(draw: random.Random) -> Drawn:
    return Call(draw.choice(_FUNCTIONS)), [draw_tensor(draw)], 0


def _binary(draw: random.Random) -> Drawn:
    shape = draw_tensor(draw)
    function = draw.choice((torch.add, torch.add, torch.mul, torch.mul, torch.sub, torch.div, torch.maximum))
    channel = (1, shape[1], *(1,) * (len(shape) - 2))
    gate = (shape[0], shape[1], *(1,) * (len(shape) - 2))
    other = draw.choice((shape, shape, shape, channel, gate, (shape[-1],), (1, *shape[1:])))
    return Call(function), [shape, other], 0


def _softmax(draw: random.Random) -> Drawn:
    if draw.random() < 0.3:
        return nn.Softmax(1), [draw_image(draw, draw_size(draw, 8, 512))], 0
    length = draw.choice((16, 49, 64, 100, 196, 197, 256, 577, 1024, 2048))
    return nn.Softmax(-1), [(draw_batch(draw), draw.choice((1, 4, 8, 12, 16)), length, length)], 0


def _pool(draw: random.Random) -> Drawn:
    shape = draw_image(draw, draw_size(draw, 8, 1024))
    kernel = draw.choice((2, 3, 3, 5, 7))
    if kernel > shape[-1]:
        kernel = 3
    stride = draw.choice((1, 2, 2))
    window = (nn.MaxPool2d, nn.AvgPool2d)[draw.randint(0, 1)](kernel, stride, kernel // 2)
    whole = (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)[draw.randint(0, 1)](draw.choice((1, 1, 2, 7)))
    return draw.choice((window, window, whole)), [shape], 0


def _resize(draw: random.Random) -> Drawn:
    shape = draw_image(draw, draw_size(draw, 3, 512))
    mode = draw.choice(("nearest", "nearest", "bilinear", "bilinear", "bicubic"))
    factor = draw.choice((2.0, 2.0, 4.0, 0.5))

    def resize(image: Any) -> Any:
        return functional.interpolate(image, scale_factor=factor, mode=mode)

    return Call(resize), [shape], 16 * math.prod(shape)


def _reduction(draw: random.Random) -> Drawn:
    shape = draw_tensor(draw)
    dims = draw.choice(((-1,), (1,), tuple(range(2, len(shape))), (-2, -1)))
    function = draw.choice((torch.mean, torch.mean, torch.sum, torch.amax, torch.var))

    def reduce(operand: Any) -> Any:
        return function(operand, dim=dims, keepdim=True)

    return Call(reduce), [shape], 0


def _concat(draw: random.Random) -> Drawn:
    shape = draw_tensor(draw)
    others = [(shape[0], draw_size(draw, 8, 512), *shape[2:]) for _ in range(draw.choice((1, 1, 2, 3)))]
    return Call(lambda *parts: torch.cat(parts, 1)), [shape, *others], 0


def _copy(draw: random.Random) -> Drawn:
    shape = draw_tensor(draw)
    orders: dict[int, tuple[Shape, ...]] = {3: ((0, 2, 1), (1, 0, 2)), 4: ((0, 2, 3, 1), (0, 2, 1, 3), (0, 3, 1, 2))}
    order = draw.choice(orders[len(shape)])
    shift, pad = draw.randint(1, 4), draw.randint(1, 4)
    moves: tuple[Callable[[Any], Any], ...] = (
        lambda x: x.permute(order).contiguous(),
        lambda x: x.permute(order).contiguous(),
        lambda x: torch.roll(x, shift, -1),
        lambda x: functional.pad(x, (pad, pad)),
        lambda x: x.flip(-1),
        lambda x: x[..., ::2].contiguous(),
    )
    return Call(draw.choice(moves)), [shape], 0


ALL: Kinds = MappingProxyType(
    {
        _convolution: 30, _transposed: 2, _linear: 12, _recurrent: 2, _product: 6, _attention: 10, _norm: 11, _unary: 6,
        _binary: 8, _softmax: 2, _pool: 4, _resize: 3, _reduction: 4, _concat: 3, _copy: 5,
    }
)  # fmt: skip
PRODUCTS: Kinds = MappingProxyType(
    {_convolution: 52, _transposed: 3, _linear: 18, _recurrent: 7, _product: 8, _attention: 12, _softmax: 4}
)

SPREAD: Kinds = MappingProxyType({_grouped: 80, _recurrent: 20})
