"""Where to serve and train: the optimum of the predicted table, prices of one's own, and what is not known."""

from pathlib import Path

import pytest

from foretell.advisors.placement import Objective, Requirements
from foretell.advisors.prices import load_prices
from foretell.errors import InputError
from foretell.testing import tiny_onnx
from foretell.workflows.advise import NOT_RENTED, Renting, advise, advise_serving, advise_training
from foretell.workflows.predict import predict
from foretell.workflows.sharing.share import share

MINE = """
[[price]]
cloud = "mine"
instance = "rack"
region = "cellar"
device = "t4"
devices = 4
usd_per_h = 0.04
date = "2026-11"
source = "bill"

[sources]
bill = "our bill"
"""


def test_the_first_choice_is_the_cheapest_of_the_predicted_table() -> None:
    placement = advise_serving(tiny_onnx(), Requirements(max_batch=8), devices=["h200", "l4"], mig=False)
    assert {choice.candidate.device for choice in placement.choices} == {"h200", "l4"}
    values = []
    for choice in placement.choices:
        candidate = choice.candidate
        prediction = predict(tiny_onnx(), device=candidate.device, batch_size=candidate.batch_size, dtype="fp16")
        assert choice.offer.usd_per_h is not None
        assert prediction.latency_ms is not None
        assert prediction.latency_ms.value == pytest.approx(candidate.latency_ms.value, rel=1e-5)
        hours = prediction.latency_ms.value / 3.6e6 * 1e6 / candidate.batch_size
        values.append(hours * choice.offer.usd_per_h / choice.offer.devices)
        assert choice.value == pytest.approx(values[-1])
        assert candidate.batch_size == 8  # a tiny model takes as long at any batch
    bounds = [choice.offer.incomplete for choice in placement.choices]
    assert bounds == sorted(bounds)  # prices without their machine come last
    assert 0 < sum(bounds) < len(bounds)
    assert values[: -sum(bounds)] == sorted(values[: -sum(bounds)])
    assert not any(choice.offer.incomplete for choice in placement.front)


@pytest.mark.parametrize("by", ["usd", "energy", "carbon"])
@pytest.mark.parametrize("rate", [None, 500])
def test_the_ranked_number_is_the_number_shown(by: Objective, rate: float | None) -> None:
    requirements = Requirements(rate_per_s=rate, max_batch=4, objective=by)
    placement = advise_serving(tiny_onnx(), requirements, devices=["h200", "l4", "t4"], mig=False)
    said = placement.to_dict()
    shown = [
        choice[said["ranked_by"]]["value"] for choice in said["choices"] if by != "usd" or not choice["incomplete"]
    ]
    assert len(shown) > 2
    assert shown == sorted(shown)


def test_slices_are_packed_and_their_energy_is_not_known() -> None:
    placement = advise_serving(tiny_onnx(), Requirements(max_batch=1), devices=["h200"])
    copies = {choice.candidate.slice: choice.candidate.copies for choice in placement.choices}
    assert copies == {None: 1, "mig:1g.18gb": 7, "mig:1g.35gb": 4, "mig:2g.35gb": 3, "mig:3g.71gb": 2}
    part = next(choice for choice in placement.choices if choice.candidate.slice)
    assert part.cost.kwh_per_million is None
    by_energy = advise_serving(tiny_onnx(), Requirements(max_batch=1, objective="energy"), devices=["h200"])
    assert {choice.candidate.slice for choice in by_energy.choices} == {None}


def test_own_prices_and_clouds_count(tmp_path: Path) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(MINE, encoding="utf-8")
    renting = Renting(clouds=["mine"], prices=file, country="France", pue=1.5)
    placement = advise_serving(tiny_onnx(), Requirements(max_batch=1), renting, devices=["t4", "l4"])
    (choice,) = placement.choices
    assert choice.offer.name == "mine rack (cellar)"
    assert choice.offer.pue == 1.5
    assert choice.cost.kg_co2e_per_million is not None
    assert [refusal.place for refusal in placement.refused] == ["l4"]
    with pytest.raises(InputError, match="There are no prices for the cloud 'mien'"):
        advise_serving(tiny_onnx(), Requirements(), Renting(clouds=["mien"], prices=file), devices=["t4"])
    with pytest.raises(InputError, match="Unknown market 'sport'"):
        advise_serving(tiny_onnx(), Requirements(), Renting(market="sport"), devices=["t4"])  # type: ignore[arg-type]


def test_a_device_that_nobody_rents_out_can_be_ranked_by_energy() -> None:
    placement = advise_serving(tiny_onnx(), Requirements(objective="energy", max_batch=1), devices=["rtx-2080-ti"])
    assert placement.choices[0].offer.name == NOT_RENTED
    assert (
        advise_serving(tiny_onnx(), Requirements(max_batch=1), devices=["rtx-2080-ti"])
        .refused[0]
        .reason.startswith("price: unknown")
    )


def test_of_all_devices_those_are_considered_that_somebody_rents_out(tmp_path: Path) -> None:
    advice = advise_serving(tiny_onnx(), Requirements(objective="energy", max_batch=1), mig=False)
    assert {choice.candidate.device for choice in advice.choices} == {price.device for price in load_prices()}
    own = tmp_path / "prices.toml"
    own.write_text(MINE.replace('"t4"', '"mi300x"'), encoding="utf-8")
    own_advice = advise_serving(tiny_onnx(), Requirements(max_batch=1), Renting(clouds=["mine"], prices=own), mig=False)
    assert [choice.candidate.device for choice in own_advice.choices] == ["mi300x"]


def test_a_training_takes_its_steps_and_the_price_of_the_instance() -> None:
    advice = advise_training(tiny_onnx(), 1000, devices=["h200", "a100"], batch_size=4)
    dollars = [choice.cost.usd.value for choice in advice.choices if choice.cost.usd and not choice.offer.incomplete]
    assert dollars == sorted(dollars)
    first = advice.choices[0]
    prediction = predict(tiny_onnx(), device=first.prediction.device, batch_size=4, mode="training")
    assert prediction.latency_ms is not None
    assert first.cost.hours.value == pytest.approx(prediction.latency_ms.value * 1000 / 3.6e6)
    huge = advise_training(tiny_onnx(), 1, devices=["p4"], batch_size=2**19)
    assert not huge.choices
    assert "memory: a step may need" in huge.refused[0].reason


def test_copies_under_mps_are_as_fast_as_share_says() -> None:
    advice = advise(tiny_onnx(), devices=["h200"], max_batch=2, mig=False, shared=True)
    by_place = {choice.candidate.place: choice.candidate for choice in advice.choices}
    assert set(by_place) == {"h200", "h200, 2 by MPS", "h200, 3 by MPS"}
    for count in (2, 3):
        copy = by_place[f"h200, {count} by MPS"]
        together = share([tiny_onnx()] * count, batch_sizes=copy.batch_size, dtypes="fp16")
        assert copy.latency_ms.value == pytest.approx(
            together.jobs[0].together_ms.value, rel=0.02
        )  # starts are drawn anew
        assert copy.latency_ms.high == pytest.approx(together.jobs[0].together_ms.high, rel=0.02)
        assert copy.need_mib.value == pytest.approx(together.memory_mib.value)
        assert copy.items_per_s.value == pytest.approx(count * copy.batch_size / copy.latency_ms.value * 1000)
        assert copy.energy_j is None
    choice = next(choice for choice in advice.choices if choice.candidate.copies == 3)
    assert choice.to_dict()["shared_by"] == "mps"
    hours = 1e6 / choice.candidate.items_per_s.value / 3600
    assert choice.cost.usd_per_million.value == pytest.approx(hours * choice.offer.usd_per_h / choice.offer.devices)


def test_copies_that_break_the_limit_are_refused_however_cheap() -> None:
    alone = predict(tiny_onnx(), batch_size=1, dtype="fp16").latency_ms.value
    advice = advise(tiny_onnx(), devices=["h200"], max_batch=1, mig=False, shared=True, slo_ms=alone * 1.001)
    assert {choice.candidate.place for choice in advice.choices} == {"h200"}
    reasons = {refused.place: refused.reason for refused in advice.refused}
    assert set(reasons) == {"h200, 2 by MPS", "h200, 3 by MPS"}
    assert all(reason.startswith("latency: ") for reason in reasons.values())


def test_only_gpus_whose_sharing_was_measured_are_shared() -> None:
    advice = advise(tiny_onnx(), devices=["l4", "h200"], max_batch=1, shared=True)
    assert {choice.candidate.device for choice in advice.choices if choice.candidate.shared_by} == {"h200"}
    (refused,) = [one for one in advice.refused if "sharing" in one.reason]
    assert refused.place == "l4 by MPS"
    assert not [choice for choice in advise(tiny_onnx(), max_batch=1).choices if choice.candidate.shared_by]


def test_the_batch_at_which_occupancy_saturates_is_noted() -> None:
    advice = advise(tiny_onnx(), devices=["h200", "l4"], max_batch=8)
    (note,) = advice.notes
    assert note.startswith("On h200 at fp16 occupancy")
    assert advice.to_dict()["notes"] == [note]
    assert ("note", note) in list(advice.lines())
