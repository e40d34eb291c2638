"""Splits that do not leak and do not move."""

from collections import defaultdict

import numpy as np
import pytest

from foretell.datasets.splits import KINDS, SIDES, TEST, Split, architecture_of, assign, places, time_cuts
from foretell.errors import InputError

ZOO = [
    "resnet50", "resnet50.a1_in1k", "resnet50.tv_in1k", "resnet50d", "resnet50_gn", "resnet101", "resnet101d",
    "vgg16", "vgg16_bn", "vgg19", "efficientnet_b0", "tf_efficientnet_b0.ns_jft_in1k", "tf_efficientnet_b0.aa_in1k",
    "vit_base_patch16_224.augreg_in21k", "vit_base_patch16_384", "vit_base_patch16_clip_224.openai",
    "vit_base_patch32_224",
    "swinv2_base_window12to16_192to256", "swinv2_base_window16_256", "swinv2_small_window16_256", "xception41p",
    "mobilenetv3_large_075", "mobilenetv3_large_100", "mobilenetv3_small_100", "repvit_m1_5", "densenet121",
]  # fmt: skip


def records(count: int = 600) -> dict[str, list[str]]:
    specs = [f"timm:{ZOO[i % len(ZOO)]}" for i in range(count)]
    specs += [f"hf:bert?hidden_size={64 * (i % 40 + 1)}&vocab_size={i}" for i in range(count)]
    return {
        "workload_id": [f"w{i // 2}" for i in range(2 * count)],
        "spec": specs,
        "family": [f"family-{i % 37}" for i in range(2 * count)],
        "device_name": [f"device {i % 3}" for i in range(2 * count)],
        "measured_at": [f"2026-11-{i % 28 + 1:02}T{i % 24:02}:00:00.000+00:00" for i in range(2 * count)],
    }


def rule(kind: str, **more: object) -> Split:
    cuts = ("2026-11-18", "2026-11-23") if kind == "time" else None
    return Split(kind, cuts=cuts, **more)  # type: ignore[arg-type]


GROUPS = {"random": "workload_id", "architecture": "spec", "family": "family", "device": "device_name"}


@pytest.mark.parametrize("kind", GROUPS)
def test_no_group_is_on_two_sides(kind: str) -> None:
    all_records = records()
    sides: dict[str, set[str]] = defaultdict(set)
    for text, side in zip(all_records[GROUPS[kind]], assign(rule(kind), all_records), strict=True):
        sides[architecture_of(text) if kind == "architecture" else text].add(side)
    assert {len(assigned) for assigned in sides.values()} == {1}


@pytest.mark.parametrize("kind", KINDS)
def test_more_records_do_not_change_earlier_assignments(kind: str) -> None:
    many = records()
    few = {name: values[100:300] for name, values in many.items()}
    assert assign(rule(kind), few) == assign(rule(kind), many)[100:300]


@pytest.mark.parametrize("kind", ["random", "architecture", "time"])
def test_all_sides_get_about_their_share(kind: str) -> None:
    sides = assign(rule(kind), records())
    shares = {side: sides.count(side) / len(sides) for side in SIDES}
    assert 0.55 < shares["train"] < 0.85
    assert min(shares.values()) > 0.02
    joined = np.concatenate([places(sides, side) for side in SIDES])
    assert sorted(joined) == list(range(len(sides))), "every record is on one side"


def test_another_seed_is_another_split() -> None:
    assert assign(rule("random"), records()) == assign(rule("random"), records())
    assert assign(rule("random"), records()) != assign(rule("random", seed=1), records())


def test_variants_of_an_architecture_are_one() -> None:
    def same(*names: str) -> bool:
        return len({architecture_of(name if ":" in name else f"timm:{name}") for name in names}) == 1

    assert same("resnet50", "resnet50.a1_in1k", "resnet50d", "resnet50_gn", "torchvision:resnet50")
    assert same("vgg16", "vgg16_bn", "torchvision:vgg16_bn")
    assert same("efficientnet_b0", "tf_efficientnet_b0.ns_jft_in1k", "torchvision:efficientnet_b0")
    assert same("vit_base_patch16_224", "vit_base_patch16_384", "vit_base_patch16_clip_224.openai")
    assert same("hf:bert?hidden_size=64&vocab_size=1", "hf:bert?hidden_size=64&vocab_size=2&max_position_embeddings=9")
    assert not same("resnet50", "resnet101")
    assert not same("vit_base_patch16_224", "vit_base_patch32_224")
    assert not same("efficientnet_b0", "efficientnet_b1")
    assert not same("hf:bert?hidden_size=64", "hf:bert?hidden_size=128")
    assert not same("hf:bert?hidden_size=64", "hf:roberta?hidden_size=64")
    assert not same("synthetic:mlp?widths=8-8", "synthetic:mlp?widths=8-16")
    assert architecture_of("timm:224") == "224", "a name of numbers alone stays a name"


def test_named_groups_are_held_out_completely() -> None:
    all_records = records()
    sides = assign(rule("device", hold_out=frozenset({"device 1"})), all_records)
    assert {d for d, side in zip(all_records["device_name"], sides, strict=True) if side == TEST} == {"device 1"}
    assert sides.count(TEST) == 400
    with pytest.raises(InputError, match="Did you mean 'device 1'"):
        assign(rule("device", hold_out=frozenset({"device1"})), all_records)


def test_time_is_cut_at_fixed_moments() -> None:
    moments = [f"2026-01-{day:02}T00:00:00" for day in range(1, 31)]
    cuts = time_cuts(moments, validation=0.1, test=0.2)
    sides = assign(Split("time", cuts=cuts), {"measured_at": moments})
    assert sides == ["train"] * 21 + ["validation"] * 3 + ["test"] * 6
    with pytest.raises(InputError, match="two moments"):
        assign(Split("time"), {"measured_at": moments})
    with pytest.raises(InputError, match="no records"):
        time_cuts([])


def test_impossible_rules_are_refused() -> None:
    with pytest.raises(InputError, match="Did you mean 'family'"):
        assign(Split("famly"), records())
    with pytest.raises(InputError, match="shares"):
        assign(Split("random", validation=0.6, test=0.6), records())
    with pytest.raises(InputError, match="needs the column spec"):
        assign(Split("architecture"), {"family": ["a"]})
