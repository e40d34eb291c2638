"""What to measure: different models, the most telling first, as a plan that ``collect`` reads; measured ones count."""

from pathlib import Path

import pytest

import foretell
from foretell.profiling.campaign.plan import read_plan
from foretell.workflows.adapting.suggest import suggest


def test_a_plan_of_different_models_that_collect_reads(tmp_path: Path) -> None:
    found = suggest("rtx-4090", 12, out=tmp_path / "plan.toml")
    assert len({(one.model, one.batch_size, one.dtype) for one in found.candidates}) == 12
    left = [one.left for one in found.candidates]
    assert left == sorted(left, reverse=True)
    assert left[0] < 0.9, "the first one teaches most"
    plan = read_plan(tmp_path / "plan.toml")
    assert sum(len(part.specs) for part in plan.parts) == 12
    assert sum(part.share for part in plan.parts) == pytest.approx(1.0, abs=0.01)
    assert found.to_dict()["candidates"] == found.rows()


def test_a_cpu_measures_in_single_precision(tmp_path: Path) -> None:
    assert {one.dtype for one in suggest("cpu", 8, out=tmp_path / "plan.toml").candidates} == {"fp32"}


def test_a_cpu_measures_for_seconds_and_not_sixty_runs(tmp_path: Path) -> None:
    for device, longest_s in (("cpu", 5.0), ("a100", 0.0)):
        suggest(device, 2, out=tmp_path / "plan.toml")
        assert read_plan(tmp_path / "plan.toml").measuring.longest_s == longest_s


def test_what_was_measured_is_not_doubted_again(table: Path, tmp_path: Path) -> None:
    before = suggest("p4", 1, out=tmp_path / "plan.toml").candidates[0].left
    foretell.adapt("p4", table)
    assert suggest("p4", 1, out=tmp_path / "plan.toml").candidates[0].left < before
