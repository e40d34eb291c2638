"""Datasets: splits: whether a record is on the training, the validation or the test side.

Idea. Records of one group must stay together, or a test would ask for what was learned by heart. The side of a group is
a hash of its name and of the seed, compared with the shares of the sides; nothing else matters. So every record of a
group is on one side, adding records never moves an old one, and two stores with the same rule agree.

    random        group = workload: a workload that was measured twice is on one side
    architecture  group = `architecture_of` its spec: variants of one architecture are on one side
    family        group = family: coarser; the test families have no relative in training
    device        group = device; name the devices to hold out, because a store has only a few
    time          by fixed moments, which `time_cuts` proposes once: older records train, the latest test

Limits: shares hold for groups, not for records, and only on average: with few or very unequal groups a side may be much
larger or smaller than its share. `architecture_of` knows the naming of timm and torchvision; a new way of naming
variants needs a new word in its lists, else a variant counts as an architecture of its own.

>>> {architecture_of(spec) for spec in ("timm:resnet50.a1_in1k", "timm:resnet50_gn", "torchvision:resnet50")}
{'resnet50'}
>>> architecture_of("timm:resnet50") == architecture_of("timm:resnet101")
False
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from foretell.errors import InputError
from foretell.registry import did_you_mean

TRAIN, VALIDATION, TEST = SIDES = ("train", "validation", "test")
KINDS = ("random", "architecture", "family", "device", "time")
Records = Mapping[str, Sequence[str]]

_NEEDS = {
    "random": "workload_id", "architecture": "spec", "family": "family", "device": "device_name", "time": "measured_at",
}  # fmt: skip
# Arguments that resize the ends of a network and leave its layers as they are.
_END_ARGUMENTS = frozenset(
    ("vocab_size", "max_position_embeddings", "image_size", "img_size", "num_classes", "num_labels", "classes")
)
# Words in a model's name that say how its weights were trained, which port it is, or which normalisation it has; the
# operators, widths and depths are the same or nearly so.
_VARIANT_WORDS = frozenset(
    (
        "tf", "legacy", "gluon", "rw", "ra2", "ra3", "ns", "ap", "in1k", "in21k", "in22k", "clip", "siglip",
        "dinov2", "dinov3", "mae", "augreg", "dist", "distilled", "gap", "bn", "gn", "evos", "evob", "ln", "rms",
        "avg", "reg1", "reg2", "reg4", "reg8", "qkvb", "quickgelu", "torchscript", "bitm", "ssl", "swsl", "ig", "pt",
        "dw",
    )
)  # fmt: skip
_SIZE_WORDS = re.compile(r"\d+|\d+to\d+|window\d+(to\d+)?|r\d{3}|p\d+")
_LETTERED_DEPTH = re.compile(r"([a-z]+\d{2,})[a-z]{1,2}")


@dataclass(frozen=True)
class Split:
    """The rule of a split; two equal rules split all stores alike.

    Args:
        kind: What a group is; see the module.
        validation: Share of the groups for choosing among models.
        test: Share of the groups for the final judgement.
        seed: Another seed is another split.
        hold_out: The groups (families, devices, …) of the test side; the others are training and validation.
        cuts: For ``time``: where validation and where test begin, as ISO texts.
    """

    kind: str
    validation: float = 0.1
    test: float = 0.2
    seed: int = 0
    hold_out: frozenset[str] = field(default=frozenset())
    cuts: tuple[str, str] | None = None


def assign(rule: Split, records: Records) -> list[str]:
    """The side of every record; ``records`` has the column that the kind needs, and ``workload_id``.

    >>> assign(Split("family", hold_out=frozenset({"vgg"})), {"family": ["vgg", "vgg"], "workload_id": ["a", "b"]})
    ['test', 'test']
    """
    if rule.kind not in KINDS:
        raise InputError(f"Unknown split {rule.kind!r}.{did_you_mean(rule.kind, KINDS)}")
    if min(rule.validation, rule.test) < 0 or rule.validation + rule.test > 1:
        raise InputError(
            f"The shares {rule.validation} and {rule.test} of a split must each be from 0 to 1, and together at most 1."
        )
    needed = _NEEDS[rule.kind]
    if needed not in records:
        raise InputError(f"A split by {rule.kind} needs the column {needed}; there are {', '.join(records)}.")
    if rule.kind == "time":
        return _by_time(rule, records[needed])
    groups = [architecture_of(text) if rule.kind == "architecture" else text for text in records[needed]]
    if not rule.hold_out:
        sides = {group: _side(rule, group) for group in set(groups)}
        return [sides[group] for group in groups]
    # a misspelt group would silently give an empty test side
    unknown = rule.hold_out - set(groups)
    if unknown:
        raise InputError(f"No record is of {sorted(unknown)[0]!r}.{did_you_mean(sorted(unknown)[0], set(groups))}")
    return [TEST if group in rule.hold_out else _train_or_validation(rule, group) for group in groups]


def _train_or_validation(rule: Split, group: str) -> str:
    """The side of a group where the test groups are named; the test share goes to training."""
    return VALIDATION if _fraction(rule, group) < rule.validation else TRAIN


def _side(rule: Split, group: str) -> str:
    fraction = _fraction(rule, group)
    if fraction < rule.test:
        return TEST
    return VALIDATION if fraction < rule.test + rule.validation else TRAIN


def _fraction(rule: Split, group: str) -> float:
    """A number in [0, 1) from the seed, the kind and the group."""
    digest = hashlib.sha256(f"{rule.seed}|{rule.kind}|{group}".encode()).digest()
    # 48 bits fit exactly into a float
    return int.from_bytes(digest[:6], "big") / float(1 << 48)


def _by_time(rule: Split, moments: Sequence[str]) -> list[str]:
    if rule.cuts is None or rule.cuts[0] > rule.cuts[1]:
        raise InputError("A split by time needs two moments in order: cuts=(validation begins, test begins).")
    validation, test = rule.cuts
    return [TEST if moment >= test else VALIDATION if moment >= validation else TRAIN for moment in moments]


def time_cuts(moments: Sequence[str], validation: float = 0.1, test: float = 0.2) -> tuple[str, str]:
    """The moments that give today's records these shares; keep them, so that later records move nothing.

    >>> time_cuts([f"2026-01-{day:02}" for day in range(1, 11)])
    ('2026-01-08', '2026-01-09')
    """
    if not moments:
        raise InputError("There are no records to cut by time.")
    ordered = sorted(moments)
    last = len(ordered) - 1
    places = (round(len(ordered) * (1 - test - validation)), round(len(ordered) * (1 - test)))
    return ordered[min(places[0], last)], ordered[min(places[1], last)]


def places(sides: Sequence[str], side: str) -> NDArray[np.intp]:
    """The positions of the records of one side."""
    return np.flatnonzero(np.asarray(sides) == side)


def architecture_of(spec: str) -> str:
    """The architecture of a model, without the size of its input, its training, or the zoo that it is from.

    For timm and torchvision: the name without the tag behind the dot, without resolutions, width multipliers and other
    bare numbers, without words such as ``tf`` or ``gn``, and without the letter of a stem (resnet50d). For models built
    from arguments: the type and all arguments that shape its layers; vocabulary, positions, classes and image size fall
    away.

    >>> architecture_of("timm:tf_efficientnet_b0.ns_jft_in1k"), architecture_of("timm:vit_base_patch16_clip_384")
    ('efficientnet_b0', 'vit_base_patch16')
    >>> architecture_of("hf:bert?hidden_size=256&num_hidden_layers=4&vocab_size=8000")
    'hf:bert?hidden_size=256&num_hidden_layers=4'
    """
    zoo, _, rest = spec.partition(":")
    name, _, query = rest.partition("?")
    shaping = [pair for pair in query.split("&") if pair and pair.partition("=")[0] not in _END_ARGUMENTS]
    # other zoos build models from arguments: their names have no variants
    name = _without_variant(name) if zoo in ("timm", "torchvision") else f"{zoo}:{name}"
    return f"{name}?{'&'.join(sorted(shaping))}" if shaping else name


def _without_variant(name: str) -> str:
    words = name.lower().partition(".")[0].split("_")
    essential = [word for word in words if word not in _VARIANT_WORDS and not _SIZE_WORDS.fullmatch(word)]
    lettered = [_LETTERED_DEPTH.fullmatch(word) for word in essential]
    names = [match.group(1) if match else word for match, word in zip(lettered, essential, strict=True)]
    return "_".join(names) or name
