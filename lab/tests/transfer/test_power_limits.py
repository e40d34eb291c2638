"""Runs at lowered power limits are found in the tables, and those that no limit binds are left out."""

from pathlib import Path

import pandas as pd
import pytest

from lab.transfer import power_limits


def test_only_limits_that_bind_are_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power_limits, "RATED_W", {"v100": 250.0})
    rows = [(100, 14.0, 99.0), (150, 11.0, 148.0), (225, 10.0, 200.0), (250, 10.0, 200.0), (50, 99.0, 50.0)]
    table = pd.DataFrame(rows, columns=["power_limit", "time_per_epoch", "average_power"])
    table = table.assign(dataset="d", network="n", batch_size=1, optimizer="sgd")
    idle = table.assign(network="idle", average_power=60.0)
    (tmp_path / "zeus").mkdir()
    pd.concat([table, idle]).to_parquet(tmp_path / "zeus" / "trace_summary_power_v100.parquet")
    found = power_limits.judge(tmp_path)
    assert found["measured"].round(2).tolist() == [1.4, 1.1]
    assert (found["told"] > 1).all()
    assert found["told"].is_monotonic_decreasing
