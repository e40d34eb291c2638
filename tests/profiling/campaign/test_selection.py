from dataclasses import replace
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from foretell.errors import InputError, MeasurementError
from foretell.profiling.campaign.plan import Plan, Selection, read_plan
from foretell.profiling.campaign.selection import choose, spread_out
from foretell.profiling.workload import Workload
from small.measured import PART, TINY, plan_of, row, write


def test_what_did_not_run_or_does_not_fit_is_left_out(tmp_path):
    bad = [
        row(TINY[1], status="oom"), row(TINY[2], latency_ms=50.0), row(TINY[3], noisy=True), row(TINY[4], part="other"),
        row(TINY[5], latency_source="kernel-sum"), row(TINY[1], batch=2, reserved_mib=9000.0),
        row(TINY[2], batch=2, mode="training"),
    ]  # fmt: skip
    write(tmp_path / "a", [*bad, row(TINY[0])])
    chosen = choose(Plan(1, (PART,), selection=Selection((str(tmp_path),))))
    assert [selected.workload for selected in chosen] == [Workload(TINY[0], 1, (16,), "fp32")]
    assert chosen[0].latency_ms == 1.0
    assert chosen[0].workload.id == row(TINY[0])["workload_id"]


def test_parts_take_turns_by_their_shares(tmp_path):
    rows = [row(spec, batch, part=part) for spec in TINY for batch in (1, 2) for part in ("tiny",)]
    rows += [row(spec, batch, part="more") for spec in TINY for batch in (4, 8)]
    write(tmp_path / "a", rows)
    parts = (replace(PART, share=0.75), replace(PART, name="more", share=0.25))
    chosen = choose(Plan(1, parts, selection=Selection((str(tmp_path),), workloads=8)))
    names = [selected.part for selected in chosen]
    assert names.count("tiny") == 6
    assert {*names[:4]} == {"tiny", "more"}


def test_any_beginning_is_spread_over_what_workloads_can_differ_in():
    rows = [row(spec, batch, latency_ms=latency) for spec in TINY for batch in (1, 64) for latency in (0.1, 1.0, 5.0)]
    rows = [{**record, "workload_id": str(number)} for number, record in enumerate(rows)]
    first = spread_out(rows, 6, "1")
    assert {record["spec"] for record in first} == {*TINY}
    assert {record["latency_ms"] for record in first[:3]} == {0.1, 1.0, 5.0}
    assert spread_out(rows, 6, "1") == first
    assert spread_out(rows, 6, "2") != first


def test_without_earlier_measurements_workloads_are_drawn_from_the_zoos():
    plan = Plan(1, (replace(PART, models=8),), selection=Selection(workloads=5))
    chosen = choose(plan)
    assert len({selected.workload.id for selected in chosen}) == 5
    assert len(choose(plan, limit=2)) == 2
    assert chosen[0].latency_ms is None


def test_an_empty_selection_is_an_error(tmp_path):
    with pytest.raises(MeasurementError, match=r"no measurements\.parquet"):
        choose(Plan(1, (PART,), selection=Selection((str(tmp_path),))))
    plan = plan_of(tmp_path)
    with pytest.raises(InputError, match="Widen"):
        choose(replace(plan, selection=replace(plan.selection, max_latency_ms=0.1, min_latency_ms=0.05)))


@pytest.mark.parametrize("name", ["slices", "colocation"])
def test_the_plans_of_this_repository_name_parts_that_were_measured(name):
    folder = Path(__file__).parents[3]
    plan = read_plan(folder / "plans" / f"h200-{name}.toml")
    assert plan.kind == name
    measured = tuple(str(folder / path) for path in plan.selection.measured)
    chosen = choose(replace(plan, selection=replace(plan.selection, measured=measured)))
    assert len({selected.workload.id for selected in chosen}) == plan.selection.workloads
    assert {selected.part for selected in chosen} == {part.name for part in plan.parts}
    assert {selected.workload.dtype for selected in chosen} == {"fp32", "fp16", "bf16"}


def test_only_traced_workloads_with_few_kernels_are_taken(tmp_path):
    write(tmp_path / "a", [row(spec) for spec in TINY[:3]])
    few, many = row(TINY[0])["workload_id"], row(TINY[1])["workload_id"]  # the third has no trace
    kernels = pyarrow.table({"workload_id": [few] * 5 + [many] * 50})
    pyarrow.parquet.write_table(kernels, tmp_path / "a" / "kernels.parquet")
    chosen = choose(Plan(1, (PART,), selection=Selection((str(tmp_path),), max_kernels=20)))
    assert [selected.workload.id for selected in chosen] == [few]


def test_what_was_timed_on_a_processor_is_chosen_however_noisy_the_host_was(tmp_path):
    write(tmp_path / "a", [row(TINY[0], latency_source="cpu-timer", noisy=True), row(TINY[1], noisy=True)])
    chosen = choose(Plan(1, (PART,), selection=Selection((str(tmp_path),))))
    assert [selected.workload.spec for selected in chosen] == [TINY[0]]
