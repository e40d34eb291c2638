"""Suggestions measured: which states there are, in which order, and how a model is changed."""

import json
from pathlib import Path
from typing import Any

import pytest

from lab.campaigns.improvements.judge import read_judged, table
from lab.campaigns.improvements.measure import Task, fold_modules, tasks_of, waves


def gain(value: float) -> dict[str, float]:
    return {"value": value, "low": value / 1.2, "high": value * 1.2}


def planned(spec: str, *changes: tuple[str, str, int]) -> dict[str, Any]:
    rows = [
        {"change": name, "kind": kind, "rank": rank, "accepted": True, "batch_size": 8, "latency_gain": gain(2.0)}
        for rank, (name, kind, _) in enumerate(changes, 1)
    ]
    head = {"spec": spec, "family": "some", "input_shape": [3, 32, 32], "batch_size": 8, "dtype": "fp32"}
    return head | {"before_ms": gain(1.0), "changes": rows}


PLAN = [
    planned("synthetic:a", ("torch.compile", "compiler", 8), ("fp16 + channels-last", "together", 8)),
    planned("synthetic:b", ("bf16", "precision", 8), ("tf32", "precision", 8)),
]


def test_what_is_asked_for_comes_first_and_compiled_ones_wait_for_nobody() -> None:
    tasks = tasks_of(PLAN)
    assert [(task.number, task.name) for task in tasks] == [
        (0, "before"), (1, "before"), (1, "bf16"), (0, "torch.compile"), (0, "fp16 + channels-last"), (1, "tf32"),
    ]  # fmt: skip
    assert [[task.name for task in wave] for wave in waves(tasks)] == [
        ["before", "before", "bf16"],
        ["torch.compile"],
        ["fp16 + channels-last", "tf32"],
    ]
    both = tasks[4].workload
    assert (both.dtype, both.channels_last) == ("fp16", True)
    assert isinstance(tasks[0], Task)


def test_a_folded_model_computes_the_same() -> None:
    torch = pytest.importorskip("torch")
    layers = [torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.BatchNorm2d(8)]
    model = torch.nn.Sequential(*layers).eval()
    for norm in (model[1], model[3]):
        norm.running_mean.normal_()
        norm.weight.data.uniform_(0.5, 2.0)
    image = torch.randn(2, 3, 8, 8)
    with torch.inference_mode():
        expected = model(image)
        assert fold_modules(model, lambda: model(image)) == 1  # the second one follows no layer
        assert torch.allclose(model(image), expected, atol=1e-5)
    assert isinstance(model[1], torch.nn.Identity)


def test_gains_are_judged_against_the_state_before(tmp_path: Path) -> None:
    plan, out = tmp_path / "plan.json", tmp_path / "out.jsonl"
    plan.write_text(json.dumps(PLAN))
    lines = [
        {"network": 1, "change": "before", "latency_ms": 2.0},
        {"network": 1, "change": "bf16", "latency_ms": 0.9},
        {"network": 1, "change": "tf32", "error": "late"},
        {"network": 0, "change": "torch.compile", "latency_ms": 1.0},
    ]
    out.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (judged,) = read_judged(plan, out)
    assert (judged.change, judged.rank, judged.held) == ("bf16", 1, True)
    assert judged.measured == pytest.approx(2.0 / 0.9)
    assert "| first suggestion | 1 | 100% | 10.0% | 10.0% | 100% |" in table([judged])
