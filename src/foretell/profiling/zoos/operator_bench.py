"""Profiling: the operator bench: hundreds of independent operators in one model, so that one trace times them all.

Networks repeat a few shapes many times. A bench draws operators as networks use them, in many more shapes. That matters
because a grouped convolution, an odd number of channels or a masked attention decides which kernel runs, and the
kernels of one operator differ tenfold in time. All operands are views of one block of noise. Every result is returned,
so that none is removed as dead code.
"""

import math
import random
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from foretell.profiling.workload import Value

Shape = tuple[int, ...]
Drawn = tuple[Any, list[Shape], int]  # a module, the shapes of its operands, and an estimate of its MACs

_NOISE_ROWS = 1024
_MAX_ELEMENTS = 1 << 25
_MAX_OUTPUTS = 1 << 30
_MAX_MACS = 1e11
_TRIES = 10


class Call(nn.Module):  # type: ignore[misc]
    """A function as a module, so that its calls have a name in a trace."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *operands: Any) -> Any:
        """The result of the function."""
        return self.function(*operands)


class _First(nn.Module):  # type: ignore[misc]
    """A layer with several results, of which the first is used."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, operand: Any) -> Any:
        """The first result."""
        return self.layer(operand)[0]


class _ChannelsLast(nn.Module):  # type: ignore[misc]
    """A convolution of an image with channels last."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, image: Any) -> Any:
        """The result of the layer."""
        return self.layer(image.permute(0, 3, 1, 2))


class OperatorBench(nn.Module):  # type: ignore[misc]
    """``count`` operators drawn from ``seed``; the input sets only the batch and the precision.

    ``focus`` is what is drawn: ``all``, only ``products``, whose kernels differ most, or only what cuDNN may ``spread``
    over streams: grouped convolutions and recurrent layers.
    """

    def __init__(self, seed: int, count: int, focus: str = "all") -> None:
        super().__init__()
        draw = random.Random(f"bench/{seed}")
        kinds = {"all": _KINDS, "products": _PRODUCTS, "spread": _SPREAD}[focus]
        self.operators = nn.ModuleList()
        self.shapes: list[list[Shape]] = []
        largest, written = _NOISE_ROWS, 0
        for _ in range(_TRIES * count):
            module, shapes, macs = _draw(draw, kinds)
            sizes = [math.prod(shape) for shape in shapes]
            if max(sizes) > _MAX_ELEMENTS or macs > _MAX_MACS or written + sum(sizes) > _MAX_OUTPUTS:
                continue
            if len(self.operators) == count:
                break
            self.operators.append(module)
            self.shapes.append(shapes)
            largest, written = max(largest, *sizes), written + sum(sizes)
        self.noise = nn.Parameter(torch.empty(_NOISE_ROWS, -(-largest // _NOISE_ROWS)).normal_())

    def forward(self, image: Any) -> tuple[Any, ...]:
        """The results of all operators."""
        noise = self.noise.view(-1)
        results = [image * 1.0]
        for operator, shapes in zip(self.operators, self.shapes):
            operands = [noise[: math.prod(shape)].view(shape) for shape in shapes]
            results.append(operator(*operands))
        return tuple(results)


def operator_bench(arguments: Mapping[str, Value]) -> Any:
    """The bench of a spec: ``seed``, ``count`` and ``focus``."""
    return OperatorBench(int(arguments["seed"]), int(arguments.get("count", 200)), str(arguments.get("focus", "all")))


def _size(draw: random.Random, low: int, high: int, step: int = 8) -> int:
    """A size between two bounds, uniform in its logarithm; mostly a multiple of ``step``."""
    size = math.exp(draw.uniform(math.log(low), math.log(high)))
    if draw.random() < 0.8 and size >= step:
        return max(step, round(size / step) * step)
    return max(low, round(size))


def _few(draw: random.Random) -> int:
    return draw.choice((1, 2, 3, 4, 6, 8, 12, 16))


def _batch(draw: random.Random) -> int:
    return draw.choice((1, 1, 2, 4, 8, 16, 32, 64, 128))


def _image(draw: random.Random, channels: int) -> Shape:
    side = draw.choice((7, 7, 8, 10, 12, 14, 14, 16, 20, 24, 28, 28, 32, 48, 56, 56, 64, 96, 112, 128, 224))
    return _batch(draw), channels, side, side


def _convolution(draw: random.Random, *, grouped: bool = False) -> Drawn:
    dims = draw.choice((2, 2, 2, 2, 2, 2, 1, 3, 3))
    kernel = draw.choice((1, 1, 1, 3, 3, 3, 5, 7))
    stride = draw.choice((1, 1, 1, 2))
    kind = draw.choice(("dense", "dense", "dense", "depthwise", "depthwise", "grouped"))
    if grouped:
        kind = "grouped"
        kernel = draw.choice((3, 15, 31, 128)) if dims == 1 else kernel
    channels, filters = _size(draw, 3, 1536), _size(draw, 8, 1536)
    if draw.random() < 0.15:
        channels, filters = draw.choice(((_few(draw), filters), (channels, _few(draw)), (_few(draw), _few(draw))))
    groups = 1
    if kind == "depthwise":
        groups, filters, kernel = channels, channels, draw.choice((3, 3, 5, 7, 7, 9, 11))
    elif kind == "grouped":
        groups = draw.choice((2, 4, 8, 16, 24, 32))
        channels = max(groups, channels // groups * groups)
        filters = draw.choice((channels, max(groups, filters // groups * groups)))
    side = {1: (64, 100, 128, 512, 1000, 4096), 2: (), 3: (4, 8, 14, 16, 28)}[dims]
    shape = _image(draw, channels) if dims == 2 else (_batch(draw), channels, *(draw.choice(side),) * dims)
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
        return _ChannelsLast(module), [(batch, *sides, channels)], macs
    return module, [shape], macs


def _grouped(draw: random.Random) -> Drawn:
    return _convolution(draw, grouped=True)


def _transposed(draw: random.Random) -> Drawn:
    channels, filters = _size(draw, 8, 512), _size(draw, 8, 512)
    shape = _image(draw, channels)
    kernel = draw.choice((2, 2, 3, 4))
    module = nn.ConvTranspose2d(channels, filters, kernel, 2, 1 if kernel == 4 else 0)
    return module, [shape], math.prod(shape) * filters * kernel * kernel


def _linear(draw: random.Random) -> Drawn:
    inputs, outputs = _size(draw, 8, 8192), _size(draw, 8, 8192)
    if draw.random() < 0.3:  # unusual sizes: libraries use other kernels for odd ones
        inputs, outputs = (round(math.exp(draw.uniform(0, math.log(16384)))) for _ in range(2))
    rows: Shape = draw.choice(((_batch(draw),), (_batch(draw), draw.choice((16, 49, 64, 128, 197, 256, 512, 1024)))))
    module = nn.Linear(inputs, outputs, bias=draw.random() < 0.7)
    return module, [(*rows, inputs)], math.prod(rows) * inputs * outputs


def _product(draw: random.Random) -> Drawn:
    many = (_batch(draw), draw.choice((1, 2, 4, 8, 12, 16, 32)))
    rows, inner, columns = _size(draw, 1, 1024), _size(draw, 8, 1024), _size(draw, 1, 1024)
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
    inputs, hidden = _size(draw, 16, 1024), _size(draw, 16, 1024)
    kind = draw.choice((nn.LSTM, nn.LSTM, nn.GRU, nn.RNN))
    layer = kind(inputs, hidden, layers, batch_first=True, bidirectional=both)
    batch = _batch(draw)
    gates = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}[kind]
    macs = batch * steps * layers * (1 + both) * gates * hidden * (inputs + hidden)
    return _First(layer), [(batch, steps, inputs)], macs


def _norm(draw: random.Random) -> Drawn:
    channels = _size(draw, 8, 2048)
    kind = draw.choice(("batch", "batch", "layer", "layer", "layer", "group", "group", "instance", "rms"))
    if kind in ("layer", "rms"):
        shape: Shape = (_batch(draw), draw.choice((1, 49, 64, 196, 197, 256, 512, 1024, 3136)), channels)
        return (nn.LayerNorm if kind == "layer" else nn.RMSNorm)(channels), [shape], 0
    shape = _image(draw, channels)
    if kind == "group":
        groups = draw.choice([g for g in (1, 1, 2, 4, 8, 16, 32, 64) if channels % g == 0])
        return nn.GroupNorm(groups, channels), [shape], 0
    return (nn.BatchNorm2d if kind == "batch" else nn.InstanceNorm2d)(channels), [shape], 0


_FUNCTIONS: tuple[Callable[[Any], Any], ...] = (
    functional.relu, functional.gelu, functional.silu, functional.hardswish, functional.sigmoid, torch.tanh,
    functional.leaky_relu, functional.relu6, functional.hardsigmoid, functional.elu, functional.mish, torch.exp,
    torch.sqrt, torch.neg, torch.erf, functional.softplus, torch.abs, torch.rsqrt,
)  # fmt: skip


def _tensor(draw: random.Random) -> Shape:
    channels = _size(draw, 8, 2048)
    if draw.random() < 0.6:
        return _image(draw, channels)
    return _batch(draw), draw.choice((1, 49, 64, 196, 256, 512, 1024, 3136)), channels


def _unary(draw: random.Random) -> Drawn:
    return Call(draw.choice(_FUNCTIONS)), [_tensor(draw)], 0


def _binary(draw: random.Random) -> Drawn:
    shape = _tensor(draw)
    function = draw.choice((torch.add, torch.add, torch.mul, torch.mul, torch.sub, torch.div, torch.maximum))
    channel = (1, shape[1], *(1,) * (len(shape) - 2))
    gate = (shape[0], shape[1], *(1,) * (len(shape) - 2))
    other = draw.choice((shape, shape, shape, channel, gate, (shape[-1],), (1, *shape[1:])))
    return Call(function), [shape, other], 0


def _softmax(draw: random.Random) -> Drawn:
    if draw.random() < 0.3:
        return nn.Softmax(1), [_image(draw, _size(draw, 8, 512))], 0
    length = draw.choice((16, 49, 64, 100, 196, 197, 256, 577, 1024, 2048))
    return nn.Softmax(-1), [(_batch(draw), draw.choice((1, 4, 8, 12, 16)), length, length)], 0


def _pool(draw: random.Random) -> Drawn:
    shape = _image(draw, _size(draw, 8, 1024))
    kernel = draw.choice((2, 3, 3, 5, 7))
    if kernel > shape[-1]:
        kernel = 3
    stride = draw.choice((1, 2, 2))
    window = (nn.MaxPool2d, nn.AvgPool2d)[draw.randint(0, 1)](kernel, stride, kernel // 2)
    whole = (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)[draw.randint(0, 1)](draw.choice((1, 1, 2, 7)))
    return draw.choice((window, window, whole)), [shape], 0


def _resize(draw: random.Random) -> Drawn:
    shape = _image(draw, _size(draw, 3, 512))
    mode = draw.choice(("nearest", "nearest", "bilinear", "bilinear", "bicubic"))
    factor = draw.choice((2.0, 2.0, 4.0, 0.5))

    def resize(image: Any) -> Any:
        return functional.interpolate(image, scale_factor=factor, mode=mode)

    return Call(resize), [shape], 16 * math.prod(shape)


def _reduction(draw: random.Random) -> Drawn:
    shape = _tensor(draw)
    dims = draw.choice(((-1,), (1,), tuple(range(2, len(shape))), (-2, -1)))
    function = draw.choice((torch.mean, torch.mean, torch.sum, torch.amax, torch.var))

    def reduce(operand: Any) -> Any:
        return function(operand, dim=dims, keepdim=True)

    return Call(reduce), [shape], 0


def _concat(draw: random.Random) -> Drawn:
    shape = _tensor(draw)
    others = [(shape[0], _size(draw, 8, 512), *shape[2:]) for _ in range(draw.choice((1, 1, 2, 3)))]
    return Call(lambda *parts: torch.cat(parts, 1)), [shape, *others], 0


def _copy(draw: random.Random) -> Drawn:
    shape = _tensor(draw)
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


Kinds = Mapping[Callable[[random.Random], Drawn], float]
_KINDS: Kinds = MappingProxyType(
    {
        _convolution: 30, _transposed: 2, _linear: 12, _recurrent: 2, _product: 6, _attention: 10, _norm: 11, _unary: 6,
        _binary: 8, _softmax: 2, _pool: 4, _resize: 3, _reduction: 4, _concat: 3, _copy: 5,
    }
)  # fmt: skip
_PRODUCTS: Kinds = MappingProxyType(
    {_convolution: 52, _transposed: 3, _linear: 18, _recurrent: 7, _product: 8, _attention: 12, _softmax: 4}
)

_SPREAD: Kinds = MappingProxyType({_grouped: 80, _recurrent: 20})


def _draw(draw: random.Random, kinds: Kinds) -> Drawn:
    (kind,) = draw.choices(list(kinds), list(kinds.values()))
    return kind(draw)
