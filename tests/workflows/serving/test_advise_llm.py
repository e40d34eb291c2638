"""Advice for a language model: limits are kept, the cheapest comes first, and what is refused has a reason."""

from types import SimpleNamespace

import pytest

from foretell.errors import InputError
from foretell.workflows.advise import Renting
from foretell.workflows.serving.advise_llm import LlmAdvice, LlmLimits, advise_llm

MODEL = "meta-llama/Llama-3.1-8B"


def advise(**changes: object) -> LlmAdvice:
    options = {"input_tokens": 512, "output_tokens": 64, "devices": ["h200"], "weights": ["fp8"]}
    return advise_llm(MODEL, **{**options, **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def limited() -> LlmAdvice:
    return advise(ttft_ms=400, tpot_ms=25, devices=["h200", "l40s"], weights=["published", "fp8"])


def test_limits_are_kept_and_the_cheapest_comes_first(limited: LlmAdvice) -> None:
    assert limited.choices
    costs = [choice.usd_per_million_tokens.value for choice in limited.choices]
    assert costs == sorted(costs)
    for choice in limited.choices:
        one = choice.prediction
        assert one.fits
        assert one.ttft_ms is not None
        assert one.tpot_ms is not None
        assert one.ttft_ms.value <= 400
        assert one.tpot_ms.value <= 25
        assert choice.at_risk == (one.ttft_ms.high > 400 or one.tpot_ms.high > 25)
        # the rent of a copy over its tokens
        assert one.tokens_per_s is not None
        hourly = choice.usd_per_million_tokens.value * one.tokens_per_s.value * 3600 / 1e6
        assert hourly == pytest.approx(choice.usd_per_h)


def test_a_looser_limit_allows_more_requests_and_cheaper_tokens(limited: LlmAdvice) -> None:
    loose = advise(ttft_ms=4000, tpot_ms=100)
    assert loose.choices[0].prediction.concurrency > limited.choices[0].prediction.concurrency
    assert loose.choices[0].usd_per_million_tokens.value < limited.choices[0].usd_per_million_tokens.value


def test_a_rate_takes_copies_and_whole_machines() -> None:
    served = advise(ttft_ms=400, tpot_ms=25, rate=200)
    best = served.choices[0]
    assert best.copies > 1
    assert best.prediction.requests_per_s is not None
    assert (best.copies - 1) * best.prediction.requests_per_s.value < 200
    assert best.copies * best.prediction.requests_per_s.value >= 200
    assert best.usd_per_million_tokens.value == pytest.approx(best.usd_per_h / 3600 / (200 * 64) * 1e6)
    assert not advise(rate=200, budget=0.5, devices=["h200"]).choices


def test_what_is_refused_has_a_reason() -> None:
    tight = advise(tpot_ms=0.01)
    assert not tight.choices
    assert "no place keeps the limits" in repr(tight)
    assert any("the limit is 0.01 ms, with one request" in refused.reason for refused in tight.refused)
    other = advise(devices=["a100-sxm-80gb", "p100"], weights=["published", "fp8"], tpot_ms=0.01)
    reasons = {refused.place: refused.reason for refused in other.refused}
    assert reasons["a100-sxm-80gb, fp8"] == "a100-sxm-80gb has no fp8 units"
    assert "no tensor cores" in reasons["p100"]
    assert {refused.kind for refused in (*tight.refused, *other.refused)} >= {"latency", "precision"}
    # one line: so many by each kind, and one of them
    assert tight.exclusions.count("by latency") == 1


def test_rows_and_dictionaries_have_the_choices(limited: LlmAdvice) -> None:
    values = limited.to_dict()
    assert [choice["place"] for choice in values["choices"]] == [choice.place for choice in limited.choices]
    assert {"ttft_ms", "tpot_ms", "usd_per_million_tokens", "instance"} <= set(values["choices"][0])
    assert limited.rows()[0]["usd_per_million_tokens"] == limited.choices[0].usd_per_million_tokens.value
    assert limited.choices[0].place in repr(limited)


def test_energy_may_rank_and_prices_may_be_ones_own() -> None:
    by_energy = advise(by="energy", devices=["h200", "l40s"])
    joules = [choice.prediction.energy_j_per_token for choice in by_energy.choices]
    assert all(one is not None for one in joules)
    assert [one.value for one in joules if one] == sorted(one.value for one in joules if one)
    with pytest.raises(InputError, match="no prices for the cloud"):
        advise(renting=Renting(clouds=("nowhere",)))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"by": "speed"}, "choose from usd"),
        ({"weights": ["fp7"]}, "Unknown weights 'fp7'"),
        ({"engine": "eager"}, "Unknown engine 'eager'"),
        ({"ttft_ms": -1.0}, "must be above 0"),
        ({"input_tokens": 10**6}, "more than the context"),
    ],
)
def test_a_wrong_option_says_what_is_allowed(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        advise(**options)


def test_a_limit_that_holds_is_not_broken() -> None:
    from foretell.predictors.llm.serving import Load

    load = Load(ttft_ms=100, tpot_ms=10, tokens_per_s=1, requests_per_s=1)
    assert LlmLimits(100, 10).broken_by(load) is None
    assert "first token" in (LlmLimits(99, 10).broken_by(load) or "")
    assert "a token takes" in (LlmLimits(100, 9).broken_by(load) or "")


@pytest.mark.parametrize("limit_ms", [0.5, 1.0, 3.0, 6.5, 47.0, 512.0, 1e6])
def test_the_largest_number_of_requests_that_keeps_the_limits_is_found(
    monkeypatch: pytest.MonkeyPatch, limit_ms: float
) -> None:
    """With a load whose first token takes a millisecond for each request, every rung of the ladder is known."""
    from foretell.predictors.llm.serving import Load
    from foretell.workflows.serving import advise_llm as module

    monkeypatch.setattr(module, "Steps", lambda *_: None)
    monkeypatch.setattr(module, "steady_load", lambda steps, engine, *rest: Load(float(rest[2]), 1.0, 1.0, 1.0))
    engine = SimpleNamespace(framework="vllm")
    search = module._Search(None, (8, 8), LlmLimits(ttft_ms=limit_ms), engine, 0.9)  # type: ignore[arg-type]
    kept = [clients for clients in module._ladder(300) if clients <= limit_ms]
    found = search._largest(None, 300)  # type: ignore[arg-type]
    if kept:
        assert found == (kept[-1], Load(float(kept[-1]), 1.0, 1.0, 1.0))
    else:
        assert found == "the first token comes after 1 ms; the limit is 0.5 ms, with one request at a time"
