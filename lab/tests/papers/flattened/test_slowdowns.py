"""Slowdowns from flattened graphs stand beside the product's, on the same folds."""

import numpy as np
import pytest

from foretell.training.fusion import FOLDS, fold_of
from foretell.training.judging.sharing import Judged
from lab.papers.flattened import slowdowns
from lab.papers.flattened.features import INPUT, Flattening, Layers
from lab.papers.flattened.slowdowns import LINEAR, NETWORK, place_models, with_flattened

pytest.importorskip("torch")
WIDTHS = range(1, 41)


@pytest.fixture(autouse=True)
def one_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slowdowns, "_DEPTHS", (1,))


def judged() -> list[Judged]:
    """Pairs: a job is slowed down 3 times by a dense neighbour, and 1.5 times by a convolution."""
    found = []
    for width in WIDTHS:
        widths = (width, width + 100 + width % 2)
        specs = [f"synthetic:tiny?width={one}" for one in widths]
        folds = [fold_of(spec) for spec in specs]
        for member, (spec, one) in enumerate(zip(specs, widths, strict=True)):
            row = {"campaign_id": "c", "group_id": str(width), "member": member, "workload_id": str(one), "spec": spec}
            truth = float(np.log(3.0 if widths[1 - member] % 2 else 1.5))
            facts = row | {"batch_size": 1, "method": "mps"}
            found += [Judged(facts, 2, fold, folds.count(fold), truth, 0.0, {"a": 0.1}, ()) for fold in {*folds}]
    return found


def layers() -> dict[str, Layers]:
    numbers = {int(one.row["workload_id"]) for one in judged()}
    return {str(number): Layers((INPUT, "Gemm" if number % 2 else "Conv"), (0, 100), ((0, 1),)) for number in numbers}


def test_every_held_out_member_gets_both_and_keeps_its_own() -> None:
    lines: list[str] = []
    found = with_flattened(judged(), layers(), lines.append)
    assert len(found) == len(judged())
    assert all(set(one.others) == {"a", LINEAR, NETWORK} for one in found)
    assert np.mean([one.error_of(LINEAR) for one in found]) < 0.3
    assert sum("fold" in line for line in lines) == FOLDS


def test_members_without_a_graph_are_left_out() -> None:
    known = layers()
    del known["1"]
    found = with_flattened(judged(), known, lambda _: None)
    assert {one.row["group_id"] for one in found} == {str(width) for width in WIDTHS if width != 1}
    assert with_flattened(judged(), {}, lambda _: None) == []


def test_places_keep_lengths_and_angles_and_what_only_the_others_have_comes_last() -> None:
    kinds = {"a": ("Gemm",), "b": ("Gemm", "Conv"), "c": ("Conv", "Conv")}
    models = {name: Layers((INPUT, *own), (0, *[100] * len(own)), ((0, 1),)) for name, own in kinds.items()}
    rows = {"a": {"batch_size": 1}, "b": {"batch_size": 8}, "c": {"batch_size": 1}}
    placed = place_models(models, rows, ["c", "a"])
    flattening = Flattening.of(list(models.values()))
    padded = {}
    for name, model in models.items():
        places, values = flattening.vector([(model, rows[name]["batch_size"])])
        padded[name] = np.zeros(flattening.width)
        padded[name][places] = values
    for one, other in (("a", "a"), ("a", "b"), ("b", "c"), ("c", "c")):
        assert placed[one] @ placed[other] == pytest.approx(padded[one] @ padded[other], rel=1e-5)
    # c and a teach: neither has the last number
    assert [placed[name][-1] > 0.01 for name in ("a", "b", "c")] == [False, True, False]


def test_a_job_is_told_from_those_beside_it() -> None:
    # in `judged` a dense job beside a convolution is slowed down 1.5 times and its partner 3 times
    found = with_flattened(judged(), layers(), lambda _: None)
    assert np.mean([one.error_of(NETWORK) for one in found]) < 0.3
