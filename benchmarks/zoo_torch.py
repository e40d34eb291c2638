"""The ten networks of ``frameworks.py`` in PyTorch: what the other frameworks' are compared with.

Each function returns a module and example inputs: foretell predict benchmarks/zoo_torch.py:resnet50 --trust
"""

from typing import Any

import torch
from torch import Tensor, nn

BATCH, TOKENS, STEPS = 11, 512, 64  # a batch that no layer has by itself; BERT's whole table of positions
WORDS, WIDTH, HIDDEN = 10_000, 256, 512  # of the LSTM


def _images(side: int = 224) -> Tensor:
    return torch.empty(BATCH, 3, side, side)


def _torchvision(name: str, side: int = 224, **options: Any) -> tuple[nn.Module, Tensor]:
    from torchvision import models

    return models.get_model(name, weights=None, **options).eval(), _images(side)


def resnet50() -> tuple[nn.Module, Any]:
    return _torchvision("resnet50")


def vgg16() -> tuple[nn.Module, Any]:
    return _torchvision("vgg16")


def mobilenet_v2() -> tuple[nn.Module, Any]:
    return _torchvision("mobilenet_v2")


def densenet121() -> tuple[nn.Module, Any]:
    return _torchvision("densenet121")


def efficientnet_b0() -> tuple[nn.Module, Any]:
    return _torchvision("efficientnet_b0")


def inception_v3() -> tuple[nn.Module, Any]:
    """Without the auxiliary head, which only training has."""
    return _torchvision("inception_v3", side=299, aux_logits=False, init_weights=False)


def vit_b_16() -> tuple[nn.Module, Any]:
    """Hugging Face's: a product each for queries, keys and values, as the attention layers of the others have."""
    from transformers import ViTConfig, ViTForImageClassification

    class Vit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vit = ViTForImageClassification(ViTConfig(num_labels=1000))

        def forward(self, image: Tensor) -> Tensor:
            return self.vit(pixel_values=image).logits

    return Vit().eval(), _images()


def bert_base() -> tuple[nn.Module, Any]:
    """Hugging Face's, with its pooler; every token is attended to."""
    from transformers import BertConfig, BertModel

    class Bert(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = BertModel(BertConfig())

        def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
            return self.bert(input_ids=input_ids, token_type_ids=token_type_ids).pooler_output

    tokens = torch.empty(BATCH, TOKENS, dtype=torch.int64)
    return Bert().eval(), (tokens, tokens.clone())


class _Lstm(nn.Module):
    """A language model of two layers. Without biases: PyTorch and Paddle have two a gate, Keras and Flax one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.lstm = nn.LSTM(WIDTH, HIDDEN, num_layers=2, bias=False, batch_first=True)
        self.head = nn.Linear(HIDDEN, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(tokens))[0])


def lstm() -> tuple[nn.Module, Any]:
    return _Lstm().eval(), torch.empty(BATCH, STEPS, dtype=torch.int64)


def _twice(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in (inputs, outputs):
        layers += [nn.Conv2d(width, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class _UNet(nn.Module):
    """Ronneberger et al. 2015, padded and with batch norms."""

    def __init__(self, widths: tuple[int, ...] = (64, 128, 256, 512, 1024), classes: int = 2) -> None:
        super().__init__()
        self.down = nn.ModuleList(_twice(i, o) for i, o in zip((3, *widths), widths))
        pairs = list(zip(widths[:0:-1], widths[-2::-1]))
        self.up = nn.ModuleList(nn.ConvTranspose2d(i, o, 2, stride=2) for i, o in pairs)
        self.merge = nn.ModuleList(_twice(i, o) for i, o in pairs)
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for position, block in enumerate(self.down):
            x = block(nn.functional.max_pool2d(x, 2) if position else x)
            kept.append(x)
        kept.pop()
        for up, merge in zip(self.up, self.merge):
            x = merge(torch.cat([kept.pop(), up(x)], dim=1))
        return self.head(x)


def unet() -> tuple[nn.Module, Any]:
    return _UNet().eval(), _images(256)
