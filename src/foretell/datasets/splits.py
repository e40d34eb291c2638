"""Datasets: which side of a split a record is on: training, validation or test.

A side follows from a hash of what must not be torn apart (its group) and from nothing else: adding records never moves
an old one, and every record of a group is on one side.

    random        group = workload: a workload that was measured twice is on one side
    architecture  group = `architecture_of` its spec: variants of one architecture are on one side
    family        group = family: the coarser cut, for what no relative was seen of
    device        group = device; name the devices to hold out, since few are in any store
    time          by fixed moments, which `time_cuts` proposes once: older records train, the latest test

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
# Words of a zoo's names that say how weights were trained, which port it is, or which normalisation is inside; the
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
    """A rule; two equal rules split any two stores alike.

    Args:
        kind: What must not be torn apart; see the module.
        validation: Share of the groups for choosing among models.
        test: Share of the groups that nobody looks at.
        seed: Another seed is another split.
        hold_out: Groups (families, devices, …) that are all of the test side; the shares then part the rest.
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
            f"The shares {rule.validation} and {rule.test} of a split must be 0 to 1, and 1 in all at most."
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
    unknown = rule.hold_out - set(groups)
    if unknown:
        raise InputError(f"No record is of {sorted(unknown)[0]!r}.{did_you_mean(sorted(unknown)[0], set(groups))}")
    return [TEST if group in rule.hold_out else _rest(rule, group) for group in groups]


def _rest(rule: Split, group: str) -> str:
    """The side of a group where the test side is named: its share of the test goes to training."""
    return VALIDATION if _fraction(rule, group) < rule.validation else TRAIN


def _side(rule: Split, group: str) -> str:
    place = _fraction(rule, group)
    if place < rule.test:
        return TEST
    return VALIDATION if place < rule.test + rule.validation else TRAIN


def _fraction(rule: Split, group: str) -> float:
    """A number in [0, 1) from the seed, the kind and the group."""
    digest = hashlib.sha256(f"{rule.seed}|{rule.kind}|{group}".encode()).digest()
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
    """Where the records of one side are."""
    return np.flatnonzero(np.asarray(sides) == side)


def architecture_of(spec: str) -> str:
    """What a model is, without how large its input is, how it was trained, or which zoo it is from.

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
    name = _without_variant(name) if zoo in ("timm", "torchvision") else f"{zoo}:{name}"
    return f"{name}?{'&'.join(sorted(shaping))}" if shaping else name


def _without_variant(name: str) -> str:
    words = name.lower().partition(".")[0].split("_")
    kept = [word for word in words if word not in _VARIANT_WORDS and not _SIZE_WORDS.fullmatch(word)]
    found = [_LETTERED_DEPTH.fullmatch(word) for word in kept]
    short = [match.group(1) if match else word for match, word in zip(found, kept, strict=True)]
    return "_".join(short) or name
