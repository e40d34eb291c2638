import itertools
import sys
import time
from pathlib import Path

import pytest

from foretell.profiling.campaign.job import Job
from foretell.profiling.campaign.journal import read_records
from foretell.profiling.campaign.plan import Colocation, Measuring
from lab.campaigns import colocation
from lab.campaigns.colocation_groups import Candidate
from lab.campaigns.mixes import draw_mixes
from small.measured import TINY, plan_of

FAKE = (sys.executable, str(Path(__file__).parents[3] / "tests" / "fakes" / "fake_replay_worker.py"))
SMALL = Colocation(("mps",), processes=4, groups=1, mixes=2)


def measure(plan, out, command=FAKE):
    counts = colocation.run(Job(plan, out, "cpu", 600.0, time.monotonic(), (), "", 0), command)
    return counts, [line for line in read_records(out) if line["kind"] == "mixes"]


def test_mixes_have_one_job_a_process_and_arrive_at_once_or_in_turn():
    candidates = [Candidate(f"w{n}", n % 5, 1.0 + n, 1.0) for n in range(20)]
    mixes = draw_mixes(candidates, 4, (2, 3), 7)
    assert mixes == draw_mixes(candidates, 4, (2, 3), 7)
    assert [mix.max_jobs for mix in mixes] == [2, 2, 3, 3]
    assert len({mix.name("mps") for mix in mixes} | {mixes[0].name("time-slicing")}) == 5
    for number, mix in enumerate(mixes):
        assert sorted(job.candidate.process for job in mix.jobs) == [0, 1, 2, 3, 4]
        arrivals = [job.arrival_s for job in mix.jobs]
        assert arrivals == sorted(arrivals)
        assert (arrivals[-1] > 0) == (number % 2 == 1)
        for job in mix.jobs:
            assert 0.19 < job.alone_s < 1.22
            assert job.alone_s == pytest.approx(job.steps * job.candidate.solo_ms / 1000)


def test_every_job_of_a_mix_is_recorded_in_its_order(tmp_path):
    plan = plan_of(tmp_path / "earlier", colocation=SMALL)
    counts, rows = measure(plan, tmp_path / "out")
    assert counts["groups mps"] == 1  # groups are measured after the mixes
    mixes = {name: list(own) for name, own in itertools.groupby(rows, lambda row: row["mix_id"])}
    assert len(mixes) == 2
    for own in mixes.values():
        assert [row["job"] for row in own] == [0, 1, 2, 3]
        assert {row["jobs"] for row in own} == {4}
        for row in own:
            assert row["status"] == "ok"
            assert row["solo_ms"] == pytest.approx(1.0, rel=0.01)
            assert row["start_s"] >= row["arrival_s"] - 1e-6
            assert row["end_s"] - row["start_s"] == pytest.approx(0.002 * row["steps"])


def test_a_job_that_dies_does_not_stop_the_mix(tmp_path):
    plan = plan_of(tmp_path / "earlier", ("synthetic:abort", *TINY[:3]), colocation=SMALL)
    counts, rows = measure(plan, tmp_path / "out")
    first = [row for row in rows if row["mix_id"] == rows[0]["mix_id"]]
    assert sorted(row["status"] for row in first) == ["crash", "skipped", "skipped", "skipped"]
    (dead,) = [row for row in first if row["status"] == "crash"]
    assert "start_s" not in dead
    # the second mix lacks a process and is left out
    assert len(rows) == 4
    assert counts["crash"] >= 1


def test_real_processes_run_one_after_the_other_where_one_place_is_free(tmp_path):
    some = Colocation(("time-slicing",), (1,), processes=3, groups=1, mixes=1)
    plan = plan_of(tmp_path / "earlier", TINY[:3], colocation=some, measuring=Measuring(warmups=1, tries=1))
    _, rows = measure(plan, tmp_path / "out", colocation.WORKER)
    assert [row["status"] for row in rows] == ["ok"] * 3
    assert rows[0]["start_s"] >= 0
    for before, after in itertools.pairwise(rows):
        assert after["start_s"] >= before["end_s"]
