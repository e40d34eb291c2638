"""The ten networks of ``frameworks.py`` in Keras, saved as ``NAME.keras``.

python benchmarks/zoo_keras.py FOLDER [NAME ...]     in an environment with Keras and TensorFlow

A ``.keras`` file has no code: those with a layer of our own are exported as TensorFlow's saved model, ``NAME/``. Six
come from ``keras.applications``; where its definition is not torchvision's, some layers get other settings.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
from keras import applications, layers, ops

TOKENS, STEPS = 512, 64
WORDS, WIDTH, HIDDEN = 10_000, 256, 512
LATE_STRIDES = tuple(f"conv{stage}_block1" for stage in (3, 4, 5))


def _changed(model: keras.Model, change: Callable[[str, dict[str, Any]], dict[str, Any]]) -> keras.Model:
    """A copy of a model; ``change`` says which settings of a layer are others."""

    def clone(layer: layers.Layer) -> layers.Layer:
        settings = layer.get_config()
        return layer.__class__.from_config({**settings, **change(layer.name, settings)})

    return keras.models.clone_model(model, clone_function=clone)


def resnet50() -> keras.Model:
    """Without biases of convolutions, and with the stride in a block's second convolution, as everyone else has it."""

    def change(name: str, _: dict[str, Any]) -> dict[str, Any]:
        other: dict[str, Any] = {"use_bias": False} if name.endswith("_conv") else {}
        if name.startswith(LATE_STRIDES) and name.endswith(("_1_conv", "_2_conv")):
            other["strides"] = (2, 2) if name.endswith("_2_conv") else (1, 1)
        return other

    return _changed(applications.ResNet50(weights=None, classifier_activation=None), change)


def vgg16() -> keras.Model:
    return applications.VGG16(weights=None, classifier_activation=None)


def mobilenet_v2() -> keras.Model:
    return applications.MobileNetV2(weights=None, classifier_activation=None)


def densenet121() -> keras.Model:
    return applications.DenseNet121(weights=None, classifier_activation=None)


def efficientnet_b0() -> keras.Model:
    return applications.EfficientNetB0(weights=None, classifier_activation=None)


def inception_v3() -> keras.Model:
    """With the scale of the batch norms, which Keras leaves out before a ReLU."""
    return _changed(
        applications.InceptionV3(weights=None, classifier_activation=None),
        lambda _, settings: {"scale": True} if settings.get("scale") is False else {},
    )


class Positions(layers.Layer):
    """A trained table added to what comes in, after an optional class token."""

    def __init__(self, with_class: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.with_class = with_class

    def build(self, shape: tuple[int, ...]) -> None:
        """Make the table, and the token."""
        rows, width = shape[1] + self.with_class, shape[2]
        self.table = self.add_weight(shape=(1, rows, width), initializer="random_normal", name="table")
        if self.with_class:
            self.token = self.add_weight(shape=(1, 1, width), initializer="random_normal", name="token")

    def call(self, x: Any) -> Any:
        """Add the table."""
        if self.with_class:
            x = ops.concatenate([ops.broadcast_to(self.token, (ops.shape(x)[0], 1, x.shape[2])), x], axis=1)
        return x + self.table


def _attend(x: Any, width: int, heads: int) -> Any:
    return layers.MultiHeadAttention(heads, width // heads)(x, x)


def _feed(x: Any, width: int) -> Any:
    return layers.Dense(width)(layers.Dense(4 * width, activation="gelu")(x))


def vit_b_16(width: int = 768, heads: int = 12, depth: int = 12, epsilon: float = 1e-6) -> keras.Model:
    image = keras.Input((224, 224, 3))
    x = layers.Conv2D(width, 16, strides=16)(image)
    x = Positions(with_class=True)(layers.Reshape((196, width))(x))
    for _ in range(depth):
        x = x + _attend(layers.LayerNormalization(epsilon=epsilon)(x), width, heads)
        x = x + _feed(layers.LayerNormalization(epsilon=epsilon)(x), width)
    x = layers.LayerNormalization(epsilon=epsilon)(x)[:, 0]
    return keras.Model(image, layers.Dense(1000)(x))


def bert_base(width: int = 768, heads: int = 12, depth: int = 12, epsilon: float = 1e-12) -> keras.Model:
    tokens = keras.Input((TOKENS,), dtype="int64", name="input_ids")
    types = keras.Input((TOKENS,), dtype="int64", name="token_type_ids")
    x = layers.Embedding(30_522, width)(tokens) + layers.Embedding(2, width)(types)
    x = layers.LayerNormalization(epsilon=epsilon)(Positions()(x))
    for _ in range(depth):
        x = layers.LayerNormalization(epsilon=epsilon)(x + _attend(x, width, heads))
        x = layers.LayerNormalization(epsilon=epsilon)(x + _feed(x, width))
    return keras.Model([tokens, types], layers.Dense(width, activation="tanh")(x[:, 0]))


def lstm() -> keras.Model:
    tokens = keras.Input((STEPS,), dtype="int64")
    x = layers.Embedding(WORDS, WIDTH)(tokens)
    for _ in range(2):
        x = layers.LSTM(HIDDEN, use_bias=False, return_sequences=True)(x)
    return keras.Model(tokens, layers.Dense(WORDS)(x))


def _twice(x: Any, width: int) -> Any:
    for _ in range(2):
        x = layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    return x


def unet(widths: tuple[int, ...] = (64, 128, 256, 512, 1024), classes: int = 2) -> keras.Model:
    image = keras.Input((256, 256, 3))
    x, kept = image, []
    for width in widths:
        x = _twice(layers.MaxPooling2D()(x) if kept else x, width)
        kept.append(x)
    for width, skipped in zip(widths[-2::-1], kept[-2::-1]):
        x = layers.Conv2DTranspose(width, 2, strides=2)(x)
        x = _twice(layers.Concatenate()([skipped, x]), width)
    return keras.Model(image, layers.Conv2D(classes, 1)(x))


NETWORKS = (
    resnet50, vgg16, mobilenet_v2, densenet121, efficientnet_b0, inception_v3, vit_b_16, bert_base, lstm, unet
)  # fmt: skip


def main(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    trained = {}
    for build in NETWORKS:
        if not names or build.__name__ in names:
            model = build()
            trained[build.__name__] = sum(int(ops.size(weight)) for weight in model.trainable_weights)
            if any(isinstance(layer, Positions) for layer in model.layers):
                model.export(folder / build.__name__, verbose=False)
            else:
                model.save(folder / f"{build.__name__}.keras")
            keras.backend.clear_session()
    (folder / "parameters.json").write_text(json.dumps(trained))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
