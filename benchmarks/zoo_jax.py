"""The ten networks of ``frameworks.py`` in JAX, with Flax (NNX), which has no zoo of its own.

Each function returns a module and example inputs: foretell predict benchmarks/zoo_jax.py:resnet50 --trust
python benchmarks/zoo_jax.py FOLDER [NAME ...]     counts their parameters, in an environment with JAX and Flax
"""

import itertools
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

BATCH, TOKENS, STEPS = 11, 512, 64
WORDS, WIDTH, HIDDEN = 10_000, 256, 512
Pair = int | tuple[int, int]
_SEEDS = itertools.count()


def _rngs() -> nnx.Rngs:
    """A new one for every layer: one for all could not be used while shapes alone are traced."""
    return nnx.Rngs(next(_SEEDS))


def _images(side: int = 224) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((BATCH, side, side, 3), jnp.float32)


def _tokens(length: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((BATCH, length), jnp.int32)


def _pair(value: Pair) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value


def _norm(width: int) -> nnx.BatchNorm:
    return nnx.BatchNorm(width, use_running_average=True, epsilon=1e-5, rngs=_rngs())


def _conv(
    inputs: int,
    outputs: int,
    kernel: Pair,
    stride: int = 1,
    *,
    padding: Pair | None = None,
    groups: int = 1,
    bias: bool = False,
) -> nnx.Conv:
    sizes = _pair(kernel)
    pads = _pair(padding) if padding is not None else (sizes[0] // 2, sizes[1] // 2)
    options = {"strides": stride, "padding": [(p, p) for p in pads], "feature_group_count": groups, "use_bias": bias}
    return nnx.Conv(inputs, outputs, sizes, **options, rngs=_rngs())


def _conv_norm(*sizes: Any, act: Callable[[Any], Any] | None = nnx.relu, **options: Any) -> nnx.Sequential:
    return nnx.Sequential(_conv(*sizes, **options), _norm(sizes[1]), *([act] if act else []))


def _linear(inputs: int, outputs: int, bias: bool = True) -> nnx.Linear:
    return nnx.Linear(inputs, outputs, use_bias=bias, rngs=_rngs())


def _pool(kind: Callable[..., Any], size: int, stride: int, padding: int = 0) -> Callable[[Any], Any]:
    """Of pools, jax2onnx knows paddings by name alone; where one is asked for, SAME gives images of the same size."""
    pads = "SAME" if padding else "VALID"
    return partial(kind, window_shape=(size, size), strides=(stride, stride), padding=pads)


_max_pool, _avg_pool = partial(_pool, nnx.max_pool), partial(_pool, nnx.avg_pool)


def _mean(x: Any) -> Any:
    return x.mean(axis=(1, 2))


def _flatten(x: Any) -> Any:
    return x.reshape(x.shape[0], -1)


class _Bottleneck(nnx.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        outputs = 4 * width
        parts = (
            _conv_norm(inputs, width, 1),
            _conv_norm(width, width, 3, stride),
            _conv_norm(width, outputs, 1, act=None),
        )
        self.body = nnx.Sequential(*parts)
        self.skip = _conv_norm(inputs, outputs, 1, stride, act=None) if stride > 1 or inputs != outputs else None

    def __call__(self, x: Any) -> Any:
        return nnx.relu(self.body(x) + (self.skip(x) if self.skip is not None else x))


def resnet50() -> tuple[nnx.Module, Any]:
    parts, inputs = [_conv_norm(3, 64, 7, 2), _max_pool(3, 2, 1)], 64
    for width, blocks in zip((64, 128, 256, 512), (3, 4, 6, 3)):
        for position in range(blocks):
            parts.append(_Bottleneck(inputs, width, 2 if width > 64 and not position else 1))
            inputs = 4 * width
    return nnx.Sequential(*parts, _mean, _linear(inputs, 1000)), _images()


def vgg16() -> tuple[nnx.Module, Any]:
    parts, inputs = [], 3
    for width, layers in zip((64, 128, 256, 512, 512), (2, 2, 3, 3, 3)):
        for _ in range(layers):
            parts += [_conv(inputs, width, 3, bias=True), nnx.relu]
            inputs = width
        parts.append(_max_pool(2, 2))
    parts += [_flatten, _linear(7 * 7 * 512, 4096), nnx.relu, _linear(4096, 4096), nnx.relu, _linear(4096, 1000)]
    return nnx.Sequential(*parts), _images()


class _SqueezeExcite(nnx.Module):
    def __init__(self, width: int, squeezed: int) -> None:
        self.squeeze = _conv(width, squeezed, 1, bias=True)
        self.excite = _conv(squeezed, width, 1, bias=True)

    def __call__(self, x: Any) -> Any:
        return x * nnx.sigmoid(self.excite(nnx.silu(self.squeeze(x.mean(axis=(1, 2), keepdims=True)))))


class _Inverted(nnx.Module):
    """The block of MobileNetV2 and, with squeeze and excitation, of EfficientNet."""

    def __init__(
        self, inputs: int, outputs: int, expand: int, kernel: int, stride: int, act: Callable[[Any], Any], squeeze: bool
    ) -> None:
        width = inputs * expand
        parts = [_conv_norm(inputs, width, 1, act=act)] if expand > 1 else []
        parts.append(_conv_norm(width, width, kernel, stride, groups=width, act=act))
        parts += [_SqueezeExcite(width, inputs // 4)] if squeeze else []
        self.body = nnx.Sequential(*parts, _conv_norm(width, outputs, 1, act=None))
        self.skips = stride == 1 and inputs == outputs

    def __call__(self, x: Any) -> Any:
        return self.body(x) + x if self.skips else self.body(x)


def _inverted(stages: Sequence[Sequence[int]], act: Callable[[Any], Any], squeeze: bool) -> nnx.Sequential:
    """Stages are: how often, to how many channels, expansion, kernel, stride."""
    parts, width = [_conv_norm(3, 32, 3, 2, act=act)], 32
    for repeats, outputs, expand, kernel, stride in stages:
        for position in range(repeats):
            parts.append(_Inverted(width, outputs, expand, kernel, 1 if position else stride, act, squeeze))
            width = outputs
    return nnx.Sequential(*parts, _conv_norm(width, 1280, 1, act=act), _mean, _linear(1280, 1000))


def mobilenet_v2() -> tuple[nnx.Module, Any]:
    stages = (
        (1, 16, 1, 3, 1), (2, 24, 6, 3, 2), (3, 32, 6, 3, 2), (4, 64, 6, 3, 2), (3, 96, 6, 3, 1), (3, 160, 6, 3, 2),
        (1, 320, 6, 3, 1),
    )  # fmt: skip
    return _inverted(stages, nnx.relu6, squeeze=False), _images()


def efficientnet_b0() -> tuple[nnx.Module, Any]:
    stages = (
        (1, 16, 1, 3, 1), (2, 24, 6, 3, 2), (2, 40, 6, 5, 2), (3, 80, 6, 3, 2), (3, 112, 6, 5, 1), (4, 192, 6, 5, 2),
        (1, 320, 6, 3, 1),
    )  # fmt: skip
    return _inverted(stages, nnx.silu, squeeze=True), _images()


class _DenseLayer(nnx.Module):
    def __init__(self, inputs: int, growth: int) -> None:
        wide = 4 * growth
        self.body = nnx.Sequential(
            _norm(inputs), nnx.relu, _conv(inputs, wide, 1), _norm(wide), nnx.relu, _conv(wide, growth, 3)
        )

    def __call__(self, x: Any) -> Any:
        return jnp.concatenate([x, self.body(x)], axis=-1)


def densenet121(growth: int = 32) -> tuple[nnx.Module, Any]:
    parts, width = [_conv_norm(3, 64, 7, 2), _max_pool(3, 2, 1)], 64
    for layers in (6, 12, 24, 16):
        if width > 64:
            parts += [_norm(width), nnx.relu, _conv(width, width // 2, 1), _avg_pool(2, 2)]
            width //= 2
        parts += [_DenseLayer(width + growth * position, growth) for position in range(layers)]
        width += growth * layers
    return nnx.Sequential(*parts, _norm(width), nnx.relu, _mean, _linear(width, 1000)), _images()


class _Branches(nnx.Module):
    """What several ways make of one input, side by side."""

    def __init__(self, *ways: Any) -> None:
        self.ways = nnx.List(ways)

    def __call__(self, x: Any) -> Any:
        return jnp.concatenate([way(x) for way in self.ways], axis=-1)


def _way(inputs: int, *convs: tuple[int, Pair] | tuple[int, Pair, int], first: tuple[Any, ...] = ()) -> nnx.Sequential:
    """Convolutions in a row: (channels, kernel) or, halving the image without padding, (channels, kernel, stride)."""
    parts: list[Any] = list(first)
    for outputs, kernel, *stride in convs:
        parts.append(_conv_norm(inputs, outputs, kernel, *stride, **({"padding": 0} if stride else {})))
        inputs = outputs
    return nnx.Sequential(*parts)


def inception_v3() -> tuple[nnx.Module, Any]:
    wide, tall, mean3 = (1, 7), (7, 1), (_avg_pool(3, 1, 1),)
    parts = [_way(3, (32, 3, 2), (32, 3, 1), (64, 3)), _max_pool(3, 2), _way(64, (80, 1), (192, 3, 1)), _max_pool(3, 2)]
    for inputs, pooled in ((192, 32), (256, 64), (288, 64)):
        ways = _way(inputs, (64, 1)), _way(inputs, (48, 1), (64, 5)), _way(inputs, (64, 1), (96, 3), (96, 3))
        parts.append(_Branches(*ways, _way(inputs, (pooled, 1), first=mean3)))
    parts.append(_Branches(_way(288, (384, 3, 2)), _way(288, (64, 1), (96, 3), (96, 3, 2)), _max_pool(3, 2)))
    for c in (128, 160, 160, 192):
        long = _way(768, (c, 1), (c, tall), (c, wide), (c, tall), (192, wide))
        ways = _way(768, (192, 1)), _way(768, (c, 1), (c, wide), (192, tall)), long
        parts.append(_Branches(*ways, _way(768, (192, 1), first=mean3)))
    reduced = _way(768, (192, 1), (192, wide), (192, tall), (192, 3, 2))
    parts.append(_Branches(_way(768, (192, 1), (320, 3, 2)), reduced, _max_pool(3, 2)))
    for inputs in (1280, 2048):
        split = [_Branches(_way(384, (384, (1, 3))), _way(384, (384, (3, 1)))) for _ in range(2)]
        second = nnx.Sequential(_way(inputs, (384, 1)), split[0])
        third = nnx.Sequential(_way(inputs, (448, 1), (384, 3)), split[1])
        parts.append(_Branches(_way(inputs, (320, 1)), second, third, _way(inputs, (192, 1), first=mean3)))
    return nnx.Sequential(*parts, _mean, _linear(2048, 1000)), _images(299)


class _Block(nnx.Module):
    """An encoder's layer; ViT normalises before, BERT after."""

    def __init__(self, width: int, heads: int, epsilon: float, norm_first: bool) -> None:
        self.attention = nnx.MultiHeadAttention(heads, width, decode=False, deterministic=True, rngs=_rngs())
        self.norms = nnx.List([nnx.LayerNorm(width, epsilon=epsilon, rngs=_rngs()) for _ in range(2)])
        self.widen, self.narrow = _linear(width, 4 * width), _linear(4 * width, width)
        self.norm_first = norm_first

    def feed(self, x: Any) -> Any:
        return self.narrow(nnx.gelu(self.widen(x), approximate=False))

    def __call__(self, x: Any) -> Any:
        first, second = self.norms
        if self.norm_first:
            x = x + self.attention(first(x))
            return x + self.feed(second(x))
        x = first(x + self.attention(x))
        return second(x + self.feed(x))


class _VisionTransformer(nnx.Module):
    def __init__(self, width: int = 768, heads: int = 12, depth: int = 12) -> None:
        self.patches = _conv(3, width, 16, 16, padding=0, bias=True)
        self.token, self.positions = nnx.Param(jnp.ones((1, 1, width))), nnx.Param(jnp.ones((1, 197, width)))
        self.blocks = nnx.List([_Block(width, heads, 1e-6, True) for _ in range(depth)])
        self.norm, self.head = nnx.LayerNorm(width, epsilon=1e-6, rngs=_rngs()), _linear(width, 1000)

    def __call__(self, image: Any) -> Any:
        x = self.patches(image)
        x = x.reshape(x.shape[0], 196, x.shape[-1])
        token = jnp.broadcast_to(self.token[...], (x.shape[0], 1, x.shape[-1]))
        x = jnp.concatenate([token, x], axis=1) + self.positions[...]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def vit_b_16() -> tuple[nnx.Module, Any]:
    return _VisionTransformer(), _images()


class _Bert(nnx.Module):
    def __init__(self, width: int = 768, heads: int = 12, depth: int = 12) -> None:
        self.words, self.types = nnx.Embed(30_522, width, rngs=_rngs()), nnx.Embed(2, width, rngs=_rngs())
        self.positions = nnx.Param(jnp.ones((1, TOKENS, width)))
        self.norm = nnx.LayerNorm(width, epsilon=1e-12, rngs=_rngs())
        self.blocks = nnx.List([_Block(width, heads, 1e-12, False) for _ in range(depth)])
        self.pooler = _linear(width, width)

    def __call__(self, input_ids: Any, token_type_ids: Any) -> Any:
        x = self.norm(self.words(input_ids) + self.types(token_type_ids) + self.positions[...])
        for block in self.blocks:
            x = block(x)
        return jnp.tanh(self.pooler(x[:, 0]))


def bert_base() -> tuple[nnx.Module, Any]:
    return _Bert(), (_tokens(TOKENS), _tokens(TOKENS))


class _LstmLayer(nnx.Module):
    def __init__(self, inputs: int, hidden: int) -> None:
        self.of_input, self.of_state = _linear(inputs, 4 * hidden, False), _linear(hidden, 4 * hidden, False)
        self.hidden = hidden

    def __call__(self, x: Any) -> Any:
        def step(carry: tuple[Any, Any], entry: Any) -> tuple[tuple[Any, Any], Any]:
            h, c = carry
            i, f, g, o = jnp.split(self.of_input(entry) + self.of_state(h), 4, axis=-1)
            c = nnx.sigmoid(f) * c + nnx.sigmoid(i) * jnp.tanh(g)
            h = nnx.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        start = jnp.zeros((x.shape[0], self.hidden))
        return jax.lax.scan(step, (start, start), x.swapaxes(0, 1))[1].swapaxes(0, 1)


def lstm() -> tuple[nnx.Module, Any]:
    layers = _LstmLayer(WIDTH, HIDDEN), _LstmLayer(HIDDEN, HIDDEN)
    return nnx.Sequential(nnx.Embed(WORDS, WIDTH, rngs=_rngs()), *layers, _linear(HIDDEN, WORDS)), _tokens(STEPS)


def _twice(inputs: int, outputs: int) -> nnx.Sequential:
    return nnx.Sequential(_conv_norm(inputs, outputs, 3), _conv_norm(outputs, outputs, 3))


class _UNet(nnx.Module):
    def __init__(self, widths: tuple[int, ...] = (64, 128, 256, 512, 1024), classes: int = 2) -> None:
        self.down = nnx.List([_twice(i, o) for i, o in zip((3, *widths), widths)])
        pairs = list(zip(widths[:0:-1], widths[-2::-1]))
        self.up = nnx.List(
            [nnx.ConvTranspose(i, o, (2, 2), strides=(2, 2), padding="VALID", rngs=_rngs()) for i, o in pairs]
        )
        self.merge = nnx.List([_twice(i, o) for i, o in pairs])
        self.head = _conv(widths[0], classes, 1, bias=True)

    def __call__(self, x: Any) -> Any:
        kept: list[Any] = []
        for position, block in enumerate(self.down):
            x = block(_max_pool(2, 2)(x) if position else x)
            kept.append(x)
        kept.pop()
        for up, merge in zip(self.up, self.merge):
            x = merge(jnp.concatenate([kept.pop(), up(x)], axis=-1))
        return self.head(x)


def unet() -> tuple[nnx.Module, Any]:
    return _UNet(), _images(256)


NETWORKS = (
    resnet50, vgg16, mobilenet_v2, densenet121, efficientnet_b0, inception_v3, vit_b_16, bert_base, lstm, unet
)  # fmt: skip


def _module(build: Callable[[], tuple[nnx.Module, Any]]) -> nnx.Module:
    return build()[0]


def main(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    trained = {}
    for build in NETWORKS:
        if not names or build.__name__ in names:
            model = nnx.eval_shape(partial(_module, build))
            trained[build.__name__] = sum(p.size for p in jax.tree.leaves(nnx.state(model, nnx.Param)))
    (folder / "parameters.json").write_text(json.dumps(trained))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
