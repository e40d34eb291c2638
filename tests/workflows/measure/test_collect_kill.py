"""A campaign that is killed at random moments loses nothing and doubles nothing; so does one whose disk is full."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from foretell.profiling.campaign.journal import read_records, read_traces

pytest.importorskip("duckdb")
parquet = pytest.importorskip("pyarrow.parquet")

from foretell.datasets import open_store

KILLS = 20


def measured(folder: Path) -> Counter[str]:
    return Counter(str(line["workload_id"]) for line in read_records(folder) if line["kind"] == "measurement")


def check_at_the_end(out: Path, store: Path, expected: set[str]) -> None:
    """Every workload once in the journal, in the tables and in the store, and every trace once."""
    once = dict.fromkeys(expected, 1)
    assert measured(out) == once
    table = parquet.read_table(out / "measurements.parquet", columns=["workload_id"])
    assert Counter(table.column(0).to_pylist()) == once
    opened = open_store(store)
    rows = opened.query("SELECT workload_id FROM measurements").column(0).to_pylist()
    assert Counter(rows) == once
    traced = Counter(str(trace["workload_id"]) for trace in read_traces(out))
    assert set(traced.values()) <= {1}
    traced_ids = opened.query("SELECT DISTINCT workload_id FROM kernels").column(0).to_pylist()
    assert set(traced_ids) == set(traced)
    kernels = sum(len(trace["kernels"]["name"]) for trace in read_traces(out))  # type: ignore[index]
    assert opened.count("kernels") == kernels


class Nursery:
    """A process that starts campaigns quickly; see `quick_collect`."""

    def __init__(self, folder: Path) -> None:
        from fakes import quick_collect

        self.plan = folder / "plan.toml"
        self.plan.write_text(quick_collect.PLAN)
        os.environ["QUICK_PLAN"] = str(self.plan)
        self.expected = quick_collect.expected
        self.errors = folder / "errors.txt"
        with self.errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(quick_collect.__file__))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def begin(self, out: Path, store: Path, full: int = 0) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{out} {store} {full}\n")
        self._process.stdin.flush()
        return self._line()

    def end(self) -> int:
        return self._line()

    def _line(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@pytest.fixture
def nursery(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setenv("QUICK_PLAN", "")
    made = Nursery(tmp_path)
    yield made
    made.close()


def test_twenty_kills_lose_and_double_nothing(nursery, tmp_path):
    out, store = tmp_path / "out", tmp_path / "store"
    draw, seen, during, expected = random.Random(11), set(), set(), nursery.expected()
    for _ in range(KILLS):
        process = nursery.begin(out, store)
        time.sleep(draw.uniform(0.03, 0.4))
        try:
            os.killpg(process, signal.SIGKILL)
        except ProcessLookupError:  # it had ended by itself
            during.add("ended")
        code = nursery.end()
        during.add("killed" if code == -signal.SIGKILL else "ended")
        ids = measured(out)
        assert set(ids.values()) <= {1}
        assert seen <= set(ids)  # what was acknowledged is still there
        seen = set(ids)
        if store.exists():
            assert open_store(store).count("measurements") <= len(expected)
    assert "killed" in during
    assert nursery.begin(out, store)
    assert nursery.end() == 0, nursery.errors.read_text()
    check_at_the_end(out, store, expected)


def test_a_full_disk_keeps_what_is_written_and_the_same_command_goes_on(nursery, tmp_path):
    out, store = tmp_path / "out", tmp_path / "store"
    nursery.begin(out, store, full=15_000)
    assert nursery.end() == 2
    errors = nursery.errors.read_text()
    assert errors.count("\n") == 1
    assert "All earlier records are safe" in errors
    before = measured(out)
    assert 10 < sum(before.values()) < len(nursery.expected())
    nursery.begin(out, store)
    assert nursery.end() == 0, nursery.errors.read_text()
    assert before <= measured(out)
    check_at_the_end(out, store, nursery.expected())


REAL_PLAN = """
seed = 1
[workers]
measure = 2
trace = 0
[measuring]
warmups = 1
replays = 3
tries = 1
trace_share = 0.5
[[part]]
name = "tiny"
share = 1
zoos = ["synthetic"]
families = ["synthetic-lenet", "synthetic-chain"]
models = 110
batch_sizes = [1, 2, 4]
first_batch_sizes = [1]
per_model = 2
dtypes = ["fp32"]
"""


@pytest.mark.slow
def test_twenty_kills_of_real_measurements(tmp_path):
    from foretell.profiling.campaign.plan import read_plan
    from foretell.profiling.campaign.schedule import make_schedule

    plan, out, store = tmp_path / "plan.toml", tmp_path / "out", tmp_path / "store"
    plan.write_text(REAL_PLAN)
    command = [sys.executable, "-m", "foretell", "collect", str(plan), "--out", str(out), "--store", str(store)]
    command += ["--device", "cpu"]
    draw, seen = random.Random(3), set()
    for _ in range(KILLS):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0)
        time.sleep(draw.uniform(0.5, 8.0))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        ids = measured(out)
        assert set(ids.values()) <= {1}
        assert seen <= set(ids)
        seen = set(ids)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    ids = measured(out)
    expected = {
        w.id for queue in make_schedule(read_plan(plan)).groups.values() for group in queue for w in group.workloads
    }
    assert set(ids) <= expected
    check_at_the_end(out, store, set(ids))
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert measured(out) == ids
