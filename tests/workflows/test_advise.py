"""Where to serve and train: the optimum of the predicted table, prices of one's own, and what is not known."""

from pathlib import Path

import pytest

from foretell.advisors.placement import Requirements
from foretell.errors import InputError
from foretell.testing import tiny_onnx
from foretell.workflows.advise import NOT_RENTED, Renting, advise_serving, advise_training
from foretell.workflows.predict import predict

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
    assert values == sorted(values)


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
        .reason.startswith("usd: unknown")
    )


def test_a_training_takes_its_steps_and_the_price_of_the_instance() -> None:
    advice = advise_training(tiny_onnx(), 1000, devices=["h200", "a100"], batch_size=4)
    dollars = [choice.cost.usd.value for choice in advice.choices if choice.cost.usd]
    assert dollars == sorted(dollars)
    first = advice.choices[0]
    prediction = predict(tiny_onnx(), device=first.prediction.device, batch_size=4, mode="training")
    assert prediction.latency_ms is not None
    assert first.cost.hours.value == pytest.approx(prediction.latency_ms.value * 1000 / 3.6e6)
    huge = advise_training(tiny_onnx(), 1, devices=["p4"], batch_size=2**19)
    assert not huge.choices
    assert "memory: a step needs" in huge.refused[0].reason
