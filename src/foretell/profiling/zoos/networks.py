"""Profiling: networks defined by their parameters alone, with structures that no published zoo has."""

import itertools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from foretell.profiling.workload import Value
from foretell.profiling.zoos.operator_bench import operator_bench

Arguments = Mapping[str, Value]

_ACTIVATIONS: Mapping[str, Callable[[], Any]] = MappingProxyType(
    {
        "relu": nn.ReLU,
        "gelu": nn.GELU,
        "silu": nn.SiLU,
        "tanh": nn.Tanh,
        "sigmoid": nn.Sigmoid,
        "hardswish": nn.Hardswish,
        "leaky": nn.LeakyReLU,
        "elu": nn.ELU,
        "none": nn.Identity,
    }
)


def numbers(text: Value) -> list[int]:
    """``64-128-10`` as numbers.

    >>> numbers("64-128-10"), numbers(7)
    ([64, 128, 10], [7])
    """
    return [int(part) for part in str(text).split("-")]


def _act(arguments: Arguments) -> Any:
    return _ACTIVATIONS[str(arguments.get("act", "relu"))]()


def _norm(kind: str, channels: int, dims: int) -> Any:
    if kind == "batch":
        return (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dims - 1](channels)
    if kind == "group":
        return nn.GroupNorm(next(g for g in (32, 16, 8, 4, 2, 1) if channels % g == 0), channels)
    if kind == "instance":
        return (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)[dims - 1](channels)
    return nn.Identity()


def _conv(dims: int) -> Any:
    return (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]


def _pool_head(channels: int, classes: int, dims: int) -> list[Any]:
    pool = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)[dims - 1]
    return [pool(1), nn.Flatten(), nn.Linear(channels, classes)]


def mlp(arguments: Arguments) -> Any:
    """Fully connected layers: ``widths``, the first being the input."""
    widths = numbers(arguments["widths"])
    layers: list[Any] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), _act(arguments)]
    return nn.Sequential(*layers[:-1])


def plain_cnn(arguments: Arguments) -> Any:
    """Convolutions in a row, in one to three dimensions: ``channels``, ``kernels``, ``strides``."""
    dims, channels = int(arguments.get("dims", 2)), numbers(arguments["channels"])
    kernels, strides = numbers(arguments["kernels"]), numbers(arguments["strides"])
    dilation = int(arguments.get("dilation", 1))
    layers: list[Any] = []
    for before, after, kernel, stride in zip(channels, channels[1:], kernels, strides):
        padding = dilation * (kernel // 2)
        layers.append(_conv(dims)(before, after, kernel, stride, padding, dilation))
        layers += [_norm(str(arguments.get("norm", "none")), after, dims), _act(arguments)]
    return nn.Sequential(*layers, *_pool_head(channels[-1], int(arguments.get("classes", 10)), dims))


class Residual(nn.Module):  # type: ignore[misc]
    """``body(x) + shortcut(x)``."""

    def __init__(self, body: Any, shortcut: Any) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut

    def forward(self, x: Any) -> Any:
        """Add the two branches."""
        return self.body(x) + self.shortcut(x)


class SqueezeExcite(nn.Module):  # type: ignore[misc]
    """Channel attention, arXiv 1709.01507."""

    def __init__(self, channels: int, ratio: int = 4) -> None:
        super().__init__()
        inner = max(channels // ratio, 1)
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, inner, 1),
            nn.ReLU(),
            nn.Conv2d(inner, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, x: Any) -> Any:
        """Scale each channel."""
        return x * self.gate(x)


def residual_cnn(arguments: Arguments) -> Any:
    """Stages of residual blocks; ``expand`` above one makes them inverted bottlenecks with depthwise convolutions."""
    width, blocks = int(arguments["width"]), numbers(arguments["blocks"])
    kernel, expand, groups = int(arguments["kernel"]), int(arguments.get("expand", 1)), int(arguments.get("groups", 1))
    norm, use_se = str(arguments.get("norm", "batch")), bool(arguments.get("se", False))
    stem = int(arguments.get("stem", 3))
    layers: list[Any] = [nn.Conv2d(3, width, stem, 2, stem // 2, bias=False), _norm(norm, width, 2), _act(arguments)]
    channels = width
    for stage, count in enumerate(blocks):
        after = width * 2**stage
        for block in range(count):
            stride = 2 if block == 0 and stage > 0 else 1
            inner = channels * expand if expand > 1 else after
            split = inner if expand > 1 else groups
            body: list[Any] = []
            if expand > 1:
                body += [nn.Conv2d(channels, inner, 1, bias=False), _norm(norm, inner, 2), _act(arguments)]
            entering = inner if expand > 1 else channels
            split = split if entering % split == 0 and inner % split == 0 else 1
            body += [nn.Conv2d(entering, inner, kernel, stride, kernel // 2, groups=split, bias=False)]
            body += [_norm(norm, inner, 2), _act(arguments)]
            body += [SqueezeExcite(inner)] if use_se else []
            last = 1 if expand > 1 else kernel
            body += [nn.Conv2d(inner, after, last, 1, last // 2, bias=False), _norm(norm, after, 2)]
            same = channels == after and stride == 1
            shortcut = nn.Identity() if same else nn.Conv2d(channels, after, 1, stride, bias=False)
            layers += [Residual(nn.Sequential(*body), shortcut), _act(arguments)]
            channels = after
    return nn.Sequential(*layers, *_pool_head(channels, int(arguments.get("classes", 100)), 2))


class Attention(nn.Module):  # type: ignore[misc]
    """Multi-head self-attention through PyTorch's fused kernel."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        """Attend over the second dimension."""
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


def transformer(arguments: Arguments) -> Any:
    """Pre-norm transformer blocks over a sequence of vectors: ``width``, ``depth``, ``heads``, ``inner``."""
    width, heads, inner = int(arguments["width"]), int(arguments["heads"]), int(arguments["inner"])
    layers: list[Any] = []
    for _ in range(int(arguments["depth"])):
        attend = nn.Sequential(nn.LayerNorm(width), Attention(width, heads, bool(arguments.get("causal", False))))
        feed = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, inner), _act(arguments), nn.Linear(inner, width))
        layers += [Residual(attend, nn.Identity()), Residual(feed, nn.Identity())]
    return nn.Sequential(*layers, nn.LayerNorm(width), nn.Linear(width, int(arguments.get("classes", 100))))


class Recurrent(nn.Module):  # type: ignore[misc]
    """A stack of recurrent layers, and a linear layer on its last state."""

    def __init__(self, arguments: Arguments) -> None:
        super().__init__()
        kind = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[str(arguments["cell"])]
        hidden, both = int(arguments["hidden"]), bool(arguments.get("bidirectional", False))
        self.cells = kind(
            int(arguments["inputs"]), hidden, int(arguments["layers"]), batch_first=True, bidirectional=both
        )
        self.head = nn.Linear(hidden * (2 if both else 1), int(arguments.get("classes", 10)))

    def forward(self, x: Any) -> Any:
        """Classify a sequence."""
        return self.head(self.cells(x)[0][:, -1])


class UNet(nn.Module):  # type: ignore[misc]
    """Encoder and decoder with skips, arXiv 1505.04597."""

    def __init__(self, arguments: Arguments) -> None:
        super().__init__()
        base, depth = int(arguments["base"]), int(arguments["depth"])
        widths = [base * 2**level for level in range(depth + 1)]
        norm = str(arguments.get("norm", "batch"))

        convs = numbers(arguments["convs"]) if "convs" in arguments else [2] * (depth + 1)

        def block(before: int, after: int, count: int) -> Any:
            layers: list[Any] = []
            for number in range(count):
                entering = before if number == 0 else after
                layers += [nn.Conv2d(entering, after, 3, padding=1), _norm(norm, after, 2), _act(arguments)]
            return nn.Sequential(*layers)

        def double_size(before: int, after: int) -> Any:
            if int(arguments.get("rise", 2)) == 3:
                return nn.ConvTranspose2d(before, after, 3, 2, padding=1, output_padding=1)
            return nn.ConvTranspose2d(before, after, 2, 2)

        inputs = [int(arguments.get("inputs", 3)), *widths[:-1]]
        self.down = nn.ModuleList(block(*sizes) for sizes in zip(inputs, widths, convs))
        self.pool = nn.MaxPool2d(2)
        pairs = list(zip(widths[:0:-1], widths[-2::-1]))
        self.rise = nn.ModuleList(double_size(before, after) for before, after in pairs)
        self.up = nn.ModuleList(block(2 * after, after, int(arguments.get("up", 2))) for _, after in pairs)
        self.head = nn.Conv2d(base, int(arguments.get("classes", 1)), 1)

    def forward(self, x: Any) -> Any:
        """One value a pixel and class."""
        skips = []
        for level, down in enumerate(self.down):
            x = down(x if level == 0 else self.pool(x))
            skips.append(x)
        for skip, rise, up in zip(skips[-2::-1], self.rise, self.up):
            x = up(torch.cat([skip, rise(x)], dim=1))
        return self.head(x)


def lenet(arguments: Arguments) -> Any:
    """LeNet-5 (LeCun 1998), its widths times ``scale``."""
    scale = int(arguments.get("scale", 1))
    first, second, inner = 6 * scale, 16 * scale, 120 * scale
    convs = [nn.Conv2d(1, first, 5, padding=2), _act(arguments), nn.AvgPool2d(2)]
    convs += [nn.Conv2d(first, second, 5), _act(arguments), nn.AvgPool2d(2), nn.Flatten()]
    head = [nn.Linear(second * 25, inner), _act(arguments), nn.Linear(inner, 84 * scale), _act(arguments)]
    return nn.Sequential(*convs, *head, nn.Linear(84 * scale, 10))


_LINKS: Mapping[str, Callable[[int], Any]] = MappingProxyType(
    {
        "conv1": lambda c: nn.Conv2d(c, c, 1),
        "conv3": lambda c: nn.Conv2d(c, c, 3, padding=1),
        "conv5": lambda c: nn.Conv2d(c, c, 5, padding=2),
        "dw3": lambda c: nn.Conv2d(c, c, 3, padding=1, groups=c),
        "dw7": lambda c: nn.Conv2d(c, c, 7, padding=3, groups=c),
        "bn": nn.BatchNorm2d,
        "gn": lambda c: nn.GroupNorm(1, c),
        "max3": lambda _: nn.MaxPool2d(3, 1, 1),
        "max2": lambda _: nn.MaxPool2d(2, ceil_mode=True),
        "avg3": lambda _: nn.AvgPool2d(3, 1, 1),
        "avg2": lambda _: nn.AvgPool2d(2, ceil_mode=True),
        "up2": lambda _: nn.Upsample(scale_factor=2, mode="bilinear"),
        "near2": lambda _: nn.Upsample(scale_factor=2),
        "up2t": lambda c: nn.ConvTranspose2d(c, c, 2, 2),
        "relu": lambda _: nn.ReLU(),
        "gelu": lambda _: nn.GELU(),
        "silu": lambda _: nn.SiLU(),
        "sigmoid": lambda _: nn.Sigmoid(),
        "softmax": lambda _: nn.Softmax(dim=1),
    }
)
LINKS = tuple(_LINKS)


def chain(arguments: Arguments) -> Any:
    """Arbitrary operators in a row on one feature map: ``ops``, ``channels``."""
    channels = int(arguments["channels"])
    return nn.Sequential(*(_LINKS[name](channels) for name in str(arguments["ops"]).split("-")))


NETWORKS: Mapping[str, Callable[[Arguments], Any]] = MappingProxyType(
    {
        "mlp": mlp,
        "cnn": plain_cnn,
        "residual": residual_cnn,
        "transformer": transformer,
        "recurrent": Recurrent,
        "unet": UNet,
        "lenet": lenet,
        "chain": chain,
        "operators": operator_bench,
    }
)
