"""Profiling: a workload as plain text, from which the same workload can be built again, and its stable identifier.

>>> spec = parse_spec("synthetic:mlp?act=relu&widths=64-128-10")
>>> spec.zoo, spec.name, spec.arguments
('synthetic', 'mlp', {'act': 'relu', 'widths': '64-128-10'})
>>> str(spec)
'synthetic:mlp?act=relu&widths=64-128-10'
>>> Workload("timm:resnet50", 8, (3, 224, 224), "fp16").id == Workload("timm:resnet50", 8, (3, 224, 224), "fp16").id
True
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from foretell.errors import InputError

Value = str | int | float | bool

DTYPES = ("fp32", "fp16", "bf16")
TF32 = "tf32"  # fp32 whose matrix products run in TF32; convolutions do so in fp32 too, as PyTorch sets it
MODES = ("inference", "training", "prefill", "decode")
OPTIMIZERS = ("", "sgd", "adamw")


@dataclass(frozen=True)
class Spec:
    """``zoo:name?key=value&…``: an architecture with all arguments that determine its layers."""

    zoo: str
    name: str
    arguments: Mapping[str, Value] = field(default_factory=dict)

    def __str__(self) -> str:
        query = "&".join(f"{key}={_text(self.arguments[key])}" for key in sorted(self.arguments))
        return f"{self.zoo}:{self.name}?{query}" if query else f"{self.zoo}:{self.name}"


def _text(value: Value) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _value(text: str) -> Value:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float) else text


def parse_spec(text: str) -> Spec:
    """Read ``zoo:name?key=value&…``."""
    zoo, colon, rest = text.partition(":")
    name, _, query = rest.partition("?")
    if not colon or not zoo or not name:
        raise InputError(f"Cannot read the model spec {text!r}. Write zoo:name or zoo:name?key=value&key=value.")
    arguments: dict[str, Value] = {}
    for pair in filter(None, query.split("&")):
        key, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"Cannot read {pair!r} in the model spec {text!r}. Write key=value.")
        arguments[key] = _value(value)
    return Spec(zoo, name, arguments)


@dataclass(frozen=True)
class Workload:
    """What is computed: an architecture, a batch, a shape per sample, a precision and a mode.

    ``input_shape`` is one sample's shape without the batch: ``(3, 224, 224)``, or ``(sequence,)`` for tokens. For
    ``decode`` it is the number of tokens already in the cache. With ``channels_last``, weights and inputs of four axes
    are in PyTorch's memory format of that name.
    """

    spec: str
    batch_size: int
    input_shape: tuple[int, ...]
    dtype: str
    mode: str = "inference"
    optimizer: str = ""
    family: str = field(default="", compare=False)
    channels_last: bool = False

    @property
    def id(self) -> str:
        """Sixteen hexadecimal digits that depend only on what is computed."""
        parts = [self.spec, self.batch_size, shape_text(self.input_shape), self.dtype, self.mode, self.optimizer]
        parts += ["channels_last"] if self.channels_last else []  # all others keep the identifier that they had
        return hashlib.sha256("|".join(map(str, parts)).encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, object]:
        """The workload as plain JSON values."""
        return {
            "spec": self.spec,
            "batch_size": self.batch_size,
            "input_shape": list(self.input_shape),
            "dtype": self.dtype,
            "mode": self.mode,
            "optimizer": self.optimizer,
            "family": self.family,
            "channels_last": self.channels_last,
        }


def workload_from_json(values: Mapping[str, object]) -> Workload:
    """The workload that :meth:`Workload.to_json` wrote."""
    shape = values["input_shape"]
    if not isinstance(shape, list):
        raise InputError(f"Cannot read a workload whose input_shape is {shape!r}: a list of sizes is needed.")
    return Workload(
        spec=str(values["spec"]),
        batch_size=int(str(values["batch_size"])),
        input_shape=tuple(int(size) for size in shape),
        dtype=str(values["dtype"]),
        mode=str(values["mode"]),
        optimizer=str(values.get("optimizer", "")),
        family=str(values.get("family", "")),
        channels_last=bool(values.get("channels_last", False)),
    )


def workload_from_row(row: Mapping[str, Any]) -> Workload:
    """The workload of a row of a table, in which the shape is a text."""
    shape = tuple(int(size) for size in str(row["input_shape"] or "").split("x") if size)
    fields = (row["dtype"], row["mode"], row["optimizer"] or "", row["family"] or "")
    return Workload(row["spec"], int(row["batch_size"]), shape, *fields, bool(row.get("channels_last")))


def shape_text(shape: tuple[int, ...]) -> str:
    """A shape as people write it.

    >>> shape_text((3, 224, 224))
    '3x224x224'
    """
    return "x".join(map(str, shape))


def fraction(*parts: object) -> float:
    """A number in [0, 1) that depends only on ``parts``; shares of workloads are chosen by it.

    >>> fraction("energy", 1) == fraction("energy", 1) and 0 <= fraction("energy", 2) < 1
    True
    """
    return int.from_bytes(hashlib.sha256("|".join(map(str, parts)).encode()).digest()[:6], "big") / 2**48
