import re
import time
from pathlib import Path

from foretell.profiling.campaign.job import Job
from foretell.profiling.campaign.plan import Plan


def test_it_keeps_a_share_of_the_time_but_not_too_much():
    job = Job(Plan(1, ()), Path("out"), "cpu", 100.0, 1000.0, (Path("a"), Path("b")))
    assert job.reserve_s(0.05, 25.0) == 5.0
    assert job.reserve_s(0.5, 25.0) == 25.0
    assert job.before_end(5.0) == 1095.0
    assert job.folders == (Path("a"), Path("b"), Path("out"))


def test_a_job_knows_the_elapsed_time_and_when_enough_is_measured():
    job = Job(Plan(1, ()), Path("out"), "cpu", 100.0, time.monotonic() - 10, limit=3)
    assert 10 <= job.elapsed_s < 100
    assert [job.enough(count) for count in (2, 3, 4)] == [False, True, True]
    assert not Job(Plan(1, ()), Path("out"), "cpu", 100.0, 0.0).enough(1_000_000)


def test_a_clock_that_is_set_back_changes_no_deadline(monkeypatch):
    real = time.time
    job = Job(Plan(1, ()), Path("out"), "cpu", 100.0, time.monotonic() - 10)
    monkeypatch.setattr(time, "time", lambda: real() - 3600)
    assert 10 <= job.elapsed_s < 100


def test_no_deadline_uses_a_clock_that_can_be_set():
    root = Path(__file__).parents[3]
    folders = ("src/foretell/profiling", "src/foretell/processes", "src/foretell/workflows/measure", "lab/campaigns")
    files = [path for folder in folders for path in (root / folder).rglob("*.py")]
    assert len(files) > 50
    assert [path.name for path in files if re.search(r"\btime\.time\(", path.read_text("utf-8"))] == []
