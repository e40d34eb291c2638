"""The gain of a change: its interval, its order among others, and its sentence."""

import math
from dataclasses import replace

import pytest

from foretell.advisors.improvement import Change, Improvement, explain_change, gain_of, rank, shared_share
from foretell.records import Estimate, OperatorShare, Prediction

BEFORE = Prediction(
    "net", "h200", None, "cuda-graph", "inference", 8, "fp32", "unit-network", latency_ms=Estimate(2.0, 1.8, 2.2),
    breakdown=(OperatorShare("Conv", 3, 1.5, 0.75, "memory"), OperatorShare("Relu", 3, 0.5, 0.25, "memory")),
)  # fmt: skip
AFTER = replace(
    BEFORE,
    latency_ms=Estimate(1.2, 1.1, 1.3),
    breakdown=(OperatorShare("Conv", 3, 0.6, 0.5, "memory"), OperatorShare("generated", 3, 0.6, 0.5, "memory")),
)


def change(name: str, value: float, low: float, reason: str = "") -> Change:
    gain = Estimate(value, low, value * value / low)
    return Change(name, "precision", "numerics", "cast it", "", AFTER, {"latency": gain}, reason)


def test_the_interval_of_a_gain_is_that_of_correlated_errors() -> None:
    wide, narrow = Estimate(2.0, 2.0 / math.e**0.3, 2.0 * math.e**0.3), Estimate(1.0, math.e**-0.1, math.e**0.1)
    assert gain_of(wide, narrow, 0.0).value == 2.0
    for correlation in (0.0, 0.4, 0.9):
        gain = gain_of(wide, narrow, correlation)
        half = math.sqrt(0.3**2 + 0.1**2 - 2 * correlation * 0.3 * 0.1)
        assert math.log(gain.high / 2.0) == pytest.approx(half)
        assert math.log(2.0 / gain.low) == pytest.approx(half)
    # an error that both share cancels
    assert gain_of(wide, wide, 1.0) == Estimate(1.0, 1.0, 1.0)


def test_what_gains_more_at_least_comes_first_and_the_rest_is_rejected() -> None:
    unsure, sure, none = change("unsure", 2.0, 0.9), change("sure", 1.5, 1.4), change("none", 1.0, 0.9)
    too_large = change("large", 9.0, 8.0, reason="memory: it may need too much")
    accepted, rejected = rank([none, unsure, too_large, sure], "latency")
    assert [one.name for one in accepted] == ["sure", "unsure"]
    assert [one.name for one in rejected] == ["large", "none"]
    assert [one.is_sure("latency") for one in accepted] == [True, False]


def test_another_gpu_comes_last_unless_dollars_count() -> None:
    gains = {"latency": Estimate(5.0, 4.0, 6.0), "usd": Estimate(5.0, 4.0, 6.0)}
    moved = replace(change("b200", 5.0, 4.0), kind="device", gains=gains)
    cast = replace(change("fp16", 2.0, 1.8), gains=dict.fromkeys(gains, Estimate(2.0, 1.8, 2.2)))
    assert [one.name for one in rank([moved, cast], "latency")[0]] == ["fp16", "b200"]
    assert [one.name for one in rank([moved, cast], "usd")[0]] == ["b200", "fp16"]


def test_the_sentence_names_what_falls_and_what_rises() -> None:
    sentence = explain_change(BEFORE, AFTER)
    assert sentence == (
        "Conv takes 0.6 instead of 1.5 ms, Relu takes 0 instead of 0.5 ms, generated 0.6 instead of 0 ms; "
        "Conv was bound by memory bandwidth"
    )
    assert explain_change(BEFORE, BEFORE) == ""
    # another batch is compared by item
    assert "Conv takes 0.0375 instead of 0.188 ms" in explain_change(BEFORE, replace(AFTER, batch_size=16))


def test_units_that_both_have_are_shared() -> None:
    assert shared_share({b"a": 3.0, b"b": 1.0}, {b"a": 3.0, b"b": 1.0}) == 1.0
    assert shared_share({b"a": 3.0, b"b": 1.0}, {b"a": 3.0, b"c": 1.0}) == pytest.approx(0.75)
    assert shared_share({b"a": 3.0}, {b"c": 1.0}) == 0.0


def test_the_record_says_the_answer_first() -> None:
    answer = Improvement(BEFORE, "latency", (change("fp16", 2.0, 1.8),), (change("tf32", 1.0, 0.9, "no gain"),))
    assert answer.heading() == "Improvement: net on h200: fp16, 2 times as fast (1.8 – 2.22)"
    assert "fp16" in repr(answer)
    assert [row["accepted"] for row in answer.rows()] == [True, False]
    document = answer.to_dict()
    assert document["changes"][0]["gain"]["value"] == 2.0
    assert document["changes"][0]["after"]["latency_ms"]["value"] == 1.2
    assert document["rejected"][0]["reason"] == "no gain"
    assert "together" not in document
    assert "no change was found" in Improvement(BEFORE, "latency", (), ()).heading()
