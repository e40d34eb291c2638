"""Picks of a search are measured side by side and written as the example writes them."""

import json
from pathlib import Path
from typing import Any

import pytest

from lab.campaigns import picks

GENES = {"resolution": 32}


class _Pool:
    def __init__(self, *_: Any) -> None:
        pass

    def __enter__(self) -> "_Pool":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, work: Any, *arguments: Any) -> Any:
        class Task:
            def result(self) -> Any:
                return work(*arguments)

        return Task()


class _Run:
    def __init__(self, request: Any, folder: Path, _send: Any, lock: Any) -> None:
        self.request, self.lock = request, lock
        assert lock is not None
        assert (folder / "pick.py").read_text().count("search_measure.network")

    def measure(self) -> dict[str, Any]:
        assert self.request.input_shape == (3, 32, 32) or self.request.inputs == ("3x32x32",)
        return {"status": "ok", "error": None, "values": {"latency_ms": 2.0, "memory_mib": None, "clock_mhz": 1980.0}}


def test_what_was_measured_stands_beside_what_was_predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predicted = {"h200": {"latency_ms": {"value": 1.9, "low": 1.7, "high": 2.1}, "memory_mib": {"value": 3.0}}}
    front = {
        "batch_size": 4, "dtype": "fp16",
        "front": [{"genes": GENES, "proxy": float(n), "predicted": predicted} for n in range(3)],
    }  # fmt: skip
    (tmp_path / "front.json").write_text(json.dumps(front))
    monkeypatch.setattr(picks, "ProcessPoolExecutor", _Pool)
    monkeypatch.setattr("foretell.profiling.single.SingleRun", _Run)
    rows = picks.run(tmp_path / "front.json", tmp_path / "out.json", 2, "cpu", None)
    assert json.loads((tmp_path / "out.json").read_text()) == rows
    assert len(rows) == 2
    assert rows[0]["latency_ms"] == {"measured": 2.0, "predicted": predicted["h200"]["latency_ms"]}
    assert set(rows[0]) == {"genes", "proxy", "status", "error", "latency_ms"}
