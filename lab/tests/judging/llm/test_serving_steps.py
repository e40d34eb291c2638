"""Parts and whole steps of our own engine: what is predicted for a measured step, and its memory."""

import gzip
import json
from pathlib import Path

import pytest

from foretell.predictors.llm.kernels import shipped_kernels
from lab.judging.llm.serving_steps import judge_step_models, judge_steps, memory_mib

STEP = {"part": "step", "model": "Qwen/Qwen2.5-0.5B", "precision": "bf16", "batch": 8, "context": 1024,
        "attention": "paged", "kv": "bf16", "cache_mib": 96.0, "peak_mib": 1200.0, "us": 1500.0}  # fmt: skip


def test_memory_is_weights_cache_and_what_a_step_holds() -> None:
    base = memory_mib(STEP)
    assert 900 + 96 < base < 1300
    assert memory_mib({**STEP, "cache_mib": 196.0}) == pytest.approx(base + 100)
    assert memory_mib({**STEP, "batch": 128}) > base
    assert memory_mib({**STEP, "precision": "int4-weights"}) < base


def test_steps_are_judged_by_kind_and_by_model(tmp_path: Path) -> None:
    folder = tmp_path / "2026-01-01-1-parts"
    folder.mkdir()
    prompt = {name: value for name, value in STEP.items() if name != "context"} | {"prompt": 512, "attention": "sdpa"}
    lines = [STEP, {**STEP, "attention": "sdpa"}, prompt]
    (folder / "steps.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    table = judge_steps(tmp_path, shipped_kernels())
    assert set(table.rows) == {"bf16, prompts", "bf16, tokens, pages in bf16", "bf16, tokens, static cache"}
    (row,) = judge_step_models(tmp_path, shipped_kernels()).rows.values()
    assert row["count"] == 3
