"""A plan is predicted once, whatever dies meanwhile. The workers here answer at once, in this process."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from foretell.errors import UntrustedModelError
from foretell.processes.child import Message
from foretell.workflows.many import predict_plan as module
from foretell.workflows.many.plan import ManyPlan, read_many_plan
from foretell.workflows.many.predict_plan import PlanProgress, predict_plan, run_plan
from foretell.workflows.many.task import to_bytes
from foretell.workflows.many.workers import Crash, Outcome

MODELS = 10


class FakeWorkers:
    """Answers one task at a time; ``fate`` says what becomes of a task: an answer, a crash, or None for silence."""

    def __init__(self, fate: Callable[[Message], str | None] = lambda _: "ok", slots: int = 2) -> None:
        self.fate = fate
        self.tasks: dict[int, Message] = {}
        self.given: list[tuple[int, int]] = []
        self.cancelled: list[int] = []
        self.stopped = False
        self._slots = slots

    def start(self) -> None:
        pass

    def cores(self) -> int:
        return self._slots

    def slots(self) -> int:
        return self._slots

    def submit(self, number: int, message: Message) -> None:
        assert len(self.tasks) < self._slots
        self.tasks[number] = message["task"]
        self.given.append((message["task"]["first"], message["task"]["last"]))

    def cancel(self, number: int) -> None:
        self.cancelled.append(number)
        del self.tasks[number]

    def wait(self, timeout_s: float) -> Iterator[tuple[int, Outcome]]:
        for number, task in list(self.tasks.items()):
            said = self.fate(task)
            if said is None or number not in self.tasks:
                continue
            del self.tasks[number]
            rows = [
                {"number": number, "name": name, "status": "ok"}
                for number, name in zip(range(task["first"], task["last"]), task["names"], strict=True)
            ]
            yield number, to_bytes(rows) if said == "ok" else Crash(said)

    def stop(self) -> None:
        self.stopped = True


def plan_of(models: int = MODELS, shard_models: int = 4, timeout_s: float = 60.0) -> ManyPlan:
    names = tuple(f"model{number}" for number in range(models))
    return ManyPlan(names, "", "", 0, ({"device": "h200"},), shard_models, timeout_s, "identity")


def rows_in(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.glob("shard-*.parquet"))
    return [row for file in files for row in pyarrow.parquet.read_table(file).to_pylist()]


def test_all_models_are_predicted_once_and_a_second_run_has_nothing_to_do(tmp_path: Path) -> None:
    told: list[PlanProgress] = []
    done = run_plan(plan_of(), tmp_path, FakeWorkers(), on_progress=told.append)
    assert [row["number"] for row in rows_in(tmp_path)] == list(range(MODELS))
    assert (done.predictions, done.shards, done.errors, done.lost, done.interrupted) == (MODELS, 3, 0, 0, False)
    assert (told[-1].done, told[-1].total) == (MODELS, MODELS)
    again = FakeWorkers()
    assert run_plan(plan_of(), tmp_path, again).known_before == MODELS
    assert again.given == []


def test_a_run_that_is_stopped_continues_with_what_is_missing(tmp_path: Path) -> None:
    def stop_after_one(task: Message) -> str:
        if task["shard"]:
            raise KeyboardInterrupt
        return "ok"

    workers = FakeWorkers(stop_after_one, slots=1)
    done = run_plan(plan_of(), tmp_path, workers)
    assert (done.interrupted, done.predictions, workers.stopped) == (True, 4, True)
    second = FakeWorkers()
    assert run_plan(plan_of(), tmp_path, second).predictions == MODELS
    assert second.given == [(4, 8), (8, 10)]
    assert [row["number"] for row in rows_in(tmp_path)] == list(range(MODELS))


def test_a_worker_that_dies_once_costs_nothing(tmp_path: Path) -> None:
    deaths: list[int] = []

    def once(task: Message) -> str:
        if task["shard"] == 1 and not deaths:
            deaths.append(1)
            return "killed"
        return "ok"

    workers = FakeWorkers(once)
    done = run_plan(plan_of(), tmp_path, workers)
    assert (done.lost, done.errors, workers.given.count((4, 8))) == (1, 0, 2)
    assert [row["number"] for row in rows_in(tmp_path)] == list(range(MODELS))


def test_the_model_that_kills_workers_is_found_and_the_others_are_predicted(tmp_path: Path) -> None:
    workers = FakeWorkers(lambda task: "killed by SIGSEGV" if task["first"] <= 6 < task["last"] else "ok")
    done = run_plan(plan_of(), tmp_path, workers)
    rows = rows_in(tmp_path)
    assert [row["number"] for row in rows] == list(range(MODELS))
    assert [(row["name"], row["error"]) for row in rows if row["status"] == "error"] == [
        ("model6", "No worker could predict it: killed by SIGSEGV.")
    ]
    assert done.errors == 1


def test_a_task_that_is_far_slower_than_others_is_given_out_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SLOW_S", 0.0)
    monkeypatch.setattr(module, "_SLOW_FACTOR", 0.0)
    workers = FakeWorkers()
    # the first copy of the second shard never answers
    workers.fate = lambda task: None if task["shard"] == 1 and workers.given.count((4, 8)) < 2 else "ok"
    done = run_plan(plan_of(), tmp_path, workers)
    assert done.repeated >= 1
    assert [row["number"] for row in rows_in(tmp_path)] == list(range(MODELS))
    # whoever answers first counts, the other is ended
    assert len(workers.cancelled) == workers.given.count((4, 8)) - 1


def test_a_worker_that_is_silent_for_too_long_counts_as_dead(tmp_path: Path) -> None:
    workers = FakeWorkers()
    workers.fate = lambda task: None if task["first"] <= 1 < task["last"] else "ok"
    done = run_plan(plan_of(models=4, timeout_s=1e-9), tmp_path, workers)
    assert [row["status"] for row in rows_in(tmp_path)] == ["ok", "error", "ok", "ok"]
    assert rows_in(tmp_path)[1]["error"] == "No worker could predict it: nothing came back in 1e-09 s."
    assert done.lost == len(workers.cancelled) > 3


def test_processes_of_this_machine_predict_a_space(tmp_path: Path) -> None:
    source = (
        "from foretell.testing import tiny_graph\ndef network(number):\n    return tiny_graph(channels=4 + number)\n"
    )
    (tmp_path / "space.py").write_text(source)
    plan = tmp_path / "plan.toml"
    plan.write_text('[models]\nspace = "space.py:network"\ncount = 3\n[shards]\nmodels = 2\n')
    with pytest.raises(UntrustedModelError, match="--trust"):
        predict_plan(plan, out=tmp_path / "out")
    done = predict_plan(plan, out=tmp_path / "out", workers=1, trust=True)
    assert (done.models, done.predictions, done.errors, done.workers) == (3, 3, 0, 1)
    rows = rows_in(tmp_path / "out")
    assert [(row["number"], row["status"]) for row in rows] == [(0, "ok"), (1, "ok"), (2, "ok")]
    assert rows[0]["parameters"] < rows[1]["parameters"] < rows[2]["parameters"]
    assert done.to_dict()["predictions_per_s"] == done.rate
    assert read_many_plan(plan).shards == 2
