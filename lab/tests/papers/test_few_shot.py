"""A device that is a mix of known ones is found from a few samples; what judges was never taught."""

import numpy as np
import pytest

from lab.papers import few_shot
from lab.papers.few_shot import Conditioned, Table, Trunk, _choices, ridge, study, tell

pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, few in (("_TASKS", 200), ("_EPOCHS", 25), ("_BATCH", 128), ("_WIDTH", 32)):
        monkeypatch.setattr(few_shot, name, few)


@pytest.fixture(scope="module")
def table() -> Table:
    draw = np.random.default_rng(0)
    codes = (draw.random((900, 12)) < 0.5).astype(float)
    fields = draw.random((3, 12))
    logs = {f"known_{place}": codes @ field for place, field in enumerate(fields)}
    # the new device is mostly like the first known one, and slower
    return Table(codes, logs | {"gold_6226": codes @ (0.9 * fields[0] + 0.1 * fields[1]) + 2.0})


def test_a_mix_of_known_devices_needs_few_samples(table: Table) -> None:
    teaching, judging = np.arange(700), np.arange(700, 900)
    trunk, logs = Trunk(table, teaching), table.logs["gold_6226"]
    told = tell(table, trunk, logs, teaching[:10], judging)
    errors = {name: float(np.abs(values - logs[judging]).mean()) for name, values in told.items()}
    assert errors["known devices"] < 0.7 * errors["one factor"]
    assert errors["known devices"] < errors["from scratch"]
    assert errors["NNLQP's way"] < errors["from scratch"]


def test_a_network_that_is_told_the_device_answers_for_a_new_one(table: Table) -> None:
    teaching, judging = np.arange(700), np.arange(700, 900)
    conditioned, logs = Conditioned(table, teaching, 10), table.logs["gold_6226"]
    told = conditioned.told(table, logs, judging)
    assert set(conditioned.references) <= set(teaching)
    assert np.abs(told - logs[judging]).mean() < 0.5 * np.abs(logs[judging] - logs[judging].mean()).mean()
    np.testing.assert_allclose(conditioned.told(table, logs, judging), told, rtol=1e-5)  # tuning left no trace


def test_every_way_stands_in_the_table(table: Table) -> None:
    (rows,) = study(table, "made up", samples=(10,), draws=1)
    assert set(rows.rows) == {"gold_6226", "median of devices"}
    assert set(rows.rows["gold_6226"]) == {
        "one factor", "from scratch", "NNLQP's way", "known devices", "HELP's way"
    }  # fmt: skip


def test_architectures_are_read_place_by_place() -> None:
    assert _choices("|none~0|+|skip~0|conv~1|") == ["none~0", "skip~0", "conv~1"]
    assert _choices('["k3_e1", "skip"]') == ["k3_e1", "skip"]
    np.testing.assert_allclose(ridge(np.eye(2), np.array([1.0, 2.0]), np.array([1.0, 0.0]), 1.0), [1.0, 1.0])
