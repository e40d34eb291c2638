"""The ten networks of ``frameworks.py`` in PaddlePaddle, saved as ``NAME.json`` + ``NAME.pdiparams``.

POLYGRAPHY_AUTOINSTALL_DEPS=0 python benchmarks/zoo_paddle.py FOLDER [NAME ...]     in an environment with Paddle

Five come from ``paddle.vision.models``.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

import paddle
from paddle import nn
from paddle.static import InputSpec
from paddle.vision import models

TOKENS, STEPS = 512, 64
WORDS, WIDTH, HIDDEN = 10_000, 256, 512


def _images(side: int = 224) -> list[InputSpec]:
    return [InputSpec([None, 3, side, side], "float32", "image")]


def _tokens(length: int, *names: str) -> list[InputSpec]:
    return [InputSpec([None, length], "int64", name) for name in names]


def resnet50() -> tuple[nn.Layer, list[InputSpec]]:
    return models.resnet50(), _images()


def vgg16() -> tuple[nn.Layer, list[InputSpec]]:
    return models.vgg16(), _images()


def mobilenet_v2() -> tuple[nn.Layer, list[InputSpec]]:
    return models.mobilenet_v2(), _images()


def densenet121() -> tuple[nn.Layer, list[InputSpec]]:
    return models.densenet121(), _images()


def inception_v3() -> tuple[nn.Layer, list[InputSpec]]:
    return models.inception_v3(), _images(299)


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Layer]:
    padding = kernel // 2
    conv = nn.Conv2D(inputs, outputs, kernel, stride, padding, groups=groups, bias_attr=False)
    return [conv, nn.BatchNorm2D(outputs)]


class _SqueezeExcite(nn.Layer):
    def __init__(self, width: int, squeezed: int) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2D(1)
        self.gate = nn.Sequential(nn.Conv2D(width, squeezed, 1), nn.Silu(), nn.Conv2D(squeezed, width, 1), nn.Sigmoid())

    def forward(self, x: Any) -> Any:
        return self.gate(self.pool(x)) * x


class _MBConv(nn.Layer):
    def __init__(self, inputs: int, outputs: int, expand: int, kernel: int, stride: int) -> None:
        super().__init__()
        width = inputs * expand
        parts = [*_conv(inputs, width, 1), nn.Silu()] if expand > 1 else []
        parts += [*_conv(width, width, kernel, stride, groups=width), nn.Silu(), _SqueezeExcite(width, inputs // 4)]
        self.body = nn.Sequential(*parts, *_conv(width, outputs, 1))
        self.skips = stride == 1 and inputs == outputs

    def forward(self, x: Any) -> Any:
        return self.body(x) + x if self.skips else self.body(x)


def efficientnet_b0() -> tuple[nn.Layer, list[InputSpec]]:
    # how often, to how many channels, expansion, kernel, stride
    stages = (
        (1, 16, 1, 3, 1), (2, 24, 6, 3, 2), (2, 40, 6, 5, 2), (3, 80, 6, 3, 2), (3, 112, 6, 5, 1), (4, 192, 6, 5, 2),
        (1, 320, 6, 3, 1),
    )  # fmt: skip
    parts, width = [*_conv(3, 32, 3, 2), nn.Silu()], 32
    for repeats, outputs, expand, kernel, stride in stages:
        for position in range(repeats):
            parts.append(_MBConv(width, outputs, expand, kernel, 1 if position else stride))
            width = outputs
    parts += [*_conv(width, 1280, 1), nn.Silu(), nn.AdaptiveAvgPool2D(1), nn.Flatten(), nn.Linear(1280, 1000)]
    return nn.Sequential(*parts), _images()


def _encoder(width: int, heads: int, depth: int, epsilon: float, *, norm_first: bool) -> nn.LayerList:
    options = {"dropout": 0.0, "activation": "gelu", "normalize_before": norm_first, "layer_norm_eps": epsilon}
    return nn.LayerList([nn.TransformerEncoderLayer(width, heads, 4 * width, **options) for _ in range(depth)])


class _VisionTransformer(nn.Layer):
    def __init__(self, width: int = 768, heads: int = 12, depth: int = 12) -> None:
        super().__init__()
        self.patches = nn.Conv2D(3, width, 16, 16)
        self.token = self.create_parameter([1, 1, width])
        self.positions = self.create_parameter([1, 197, width])
        self.layers = _encoder(width, heads, depth, 1e-6, norm_first=True)
        self.norm, self.head = nn.LayerNorm(width, 1e-6), nn.Linear(width, 1000)

    def forward(self, image: Any) -> Any:
        x = self.patches(image).flatten(2).transpose([0, 2, 1])
        x = paddle.concat([self.token.expand([x.shape[0], 1, -1]), x], axis=1) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])


def vit_b_16() -> tuple[nn.Layer, list[InputSpec]]:
    return _VisionTransformer(), _images()


class _Bert(nn.Layer):
    def __init__(self, width: int = 768, heads: int = 12, depth: int = 12) -> None:
        super().__init__()
        self.words, self.types = nn.Embedding(30_522, width), nn.Embedding(2, width)
        self.positions = self.create_parameter([1, TOKENS, width])
        self.norm = nn.LayerNorm(width, 1e-12)
        self.layers = _encoder(width, heads, depth, 1e-12, norm_first=False)
        self.pooler = nn.Linear(width, width)

    def forward(self, input_ids: Any, token_type_ids: Any) -> Any:
        x = self.norm(self.words(input_ids) + self.types(token_type_ids) + self.positions)
        for layer in self.layers:
            x = layer(x)
        return paddle.tanh(self.pooler(x[:, 0]))


def bert_base() -> tuple[nn.Layer, list[InputSpec]]:
    return _Bert(), _tokens(TOKENS, "input_ids", "token_type_ids")


class _Lstm(nn.Layer):
    """Biases that are zero and not trained: Paddle's LSTM cannot be built without any."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        frozen = paddle.ParamAttr(initializer=nn.initializer.Constant(0.0), trainable=False)
        self.lstm = nn.LSTM(WIDTH, HIDDEN, num_layers=2, bias_ih_attr=frozen, bias_hh_attr=frozen)
        self.head = nn.Linear(HIDDEN, WORDS)

    def forward(self, tokens: Any) -> Any:
        return self.head(self.lstm(self.embedding(tokens))[0])


def lstm() -> tuple[nn.Layer, list[InputSpec]]:
    return _Lstm(), _tokens(STEPS, "tokens")


def _twice(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(*_conv(inputs, outputs, 3), nn.ReLU(), *_conv(outputs, outputs, 3), nn.ReLU())


class _UNet(nn.Layer):
    def __init__(self, widths: tuple[int, ...] = (64, 128, 256, 512, 1024), classes: int = 2) -> None:
        super().__init__()
        self.down = nn.LayerList([_twice(i, o) for i, o in zip((3, *widths), widths)])
        pairs = list(zip(widths[:0:-1], widths[-2::-1]))
        self.up = nn.LayerList([nn.Conv2DTranspose(i, o, 2, stride=2) for i, o in pairs])
        self.merge = nn.LayerList([_twice(i, o) for i, o in pairs])
        self.pool, self.head = nn.MaxPool2D(2), nn.Conv2D(widths[0], classes, 1)

    def forward(self, x: Any) -> Any:
        kept: list[Any] = []
        for position, block in enumerate(self.down):
            x = block(self.pool(x) if position else x)
            kept.append(x)
        kept.pop()
        for up, merge in zip(self.up, self.merge):
            x = merge(paddle.concat([kept.pop(), up(x)], axis=1))
        return self.head(x)


def unet() -> tuple[nn.Layer, list[InputSpec]]:
    return _UNet(), _images(256)


NETWORKS = (
    resnet50, vgg16, mobilenet_v2, densenet121, efficientnet_b0, inception_v3, vit_b_16, bert_base, lstm, unet
)  # fmt: skip


def main(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    trained = {}
    for build in NETWORKS:
        if not names or build.__name__ in names:
            model, inputs = build()
            model.eval()
            # batch norms hold their statistics as parameters that are not trained
            trained[build.__name__] = sum(math.prod(p.shape) for p in model.parameters() if not p.stop_gradient)
            paddle.jit.save(model, str(folder / build.__name__), input_spec=inputs)
    (folder / "parameters.json").write_text(json.dumps(trained))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
