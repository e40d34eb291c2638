"""Engines: rules with fitted times, and what is written is read again."""

import json

import pytest

from foretell.errors import ModelError
from foretell.predictors.llm import engines
from foretell.predictors.llm.engines import RULES, Fitted, shipped_engines


def test_an_engine_has_its_rules_and_its_fitted_times() -> None:
    fitted = shipped_engines()
    for name, rules in RULES.items():
        engine = fitted.engine(name)
        assert (engine.mixes, engine.chunks, engine.reserves) == (rules.mixes, rules.chunks, rules.reserves)
        assert engine.step_us == fitted.times[name]["step_us"]
        assert engine.mixture_prompts >= 1
        assert min(engine.step_us, engine.request_us, engine.arrival_ms, engine.arrival_steps) >= 0
    assert all(0 < fitted.spread[name] < 2 for name in ("ttft", "tpot", "rate"))


def test_what_is_written_is_read_again() -> None:
    fitted = shipped_engines()
    assert Fitted(**json.loads(fitted.to_bytes())) == fitted


def test_a_missing_file_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "read_shipped", lambda _: None)
    shipped_engines.cache_clear()
    with pytest.raises(ModelError, match="Install foretell again"):
        shipped_engines()
    shipped_engines.cache_clear()
