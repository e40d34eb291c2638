"""Processes that share two cores: what must hold whatever was fitted."""

import json

import numpy as np
import pytest

from foretell.errors import ModelError
from foretell.features.units import COLUMNS as UNIT_COLUMNS
from foretell.predictors.sharing.cores import COLUMNS, CoreModel, describe, traffic_of, write

MODEL = CoreModel((0.02, 0.05, 0.0, 0.1, 0.2), ((2, 0.1), (3, 0.2)))


def test_time_on_the_cores_comes_first_then_traffic() -> None:
    idle = CoreModel((0.0,) * len(COLUMNS), ((2, 0.1),))
    assert [one.value for one in idle.slowdowns([0.5, 0.5])] == [1.0, 1.0]
    assert [one.value for one in idle.slowdowns([0.5, 0.5, 0.1])] == pytest.approx([1.5] * 3)
    alone, beside = (MODEL.slowdowns([0.8, other])[0].value for other in (0.0, 1.0))
    assert beside > alone >= 1.0


def test_an_interval_holds_its_value_and_never_a_speed_up() -> None:
    for traffic in ([0.0, 1.0], [0.2, 0.4, 0.9]):
        for one in MODEL.slowdowns(traffic):
            assert 1.0 <= one.low <= one.value <= one.high
    pair, trio = MODEL.slowdowns([0.3, 0.3])[0], MODEL.slowdowns([0.3, 0.3, 0.3])[0]
    assert np.log(pair.high / pair.value) == pytest.approx(0.1)
    assert np.log(trio.high / trio.value) == pytest.approx(0.2)


def test_a_row_says_who_runs_at_the_same_time() -> None:
    rows = describe([0.2, 0.4, 0.6])
    assert dict(zip(COLUMNS, rows[0], strict=True)) == pytest.approx(
        {"processes": 1.0, "more_than_cores": 1.0, "own_traffic": 0.2, "traffic_beside": 0.5, "traffic_of_both": 0.1}
    )


def test_traffic_is_a_share_of_the_least_time() -> None:
    features = np.zeros((2, len(UNIT_COLUMNS)), np.float32)
    features[:, UNIT_COLUMNS.index("log_memory_us")] = [1.0, 2.0]
    counts = np.array([1.0, 2.0])
    assert traffic_of(features, counts, np.array([10.0, 5.0])) == pytest.approx((2 + 8) / 20)
    assert traffic_of(features, counts, np.array([1.0, 1.0])) == 1.0
    assert traffic_of(features, counts, np.zeros(2)) == 0.0


def test_a_model_is_read_as_it_was_written_and_a_damaged_one_is_refused() -> None:
    assert CoreModel.load(write(MODEL, {"groups": 3})) == MODEL
    for damaged in (b"{", b"[]", b"{}", json.dumps({"weights": {}, "widths": {}}).encode()):
        with pytest.raises(ModelError, match="not a fitted model of shared cores"):
            CoreModel.load(damaged)
    without = json.loads(write(MODEL, {})) | {"widths": {}}
    with pytest.raises(ModelError, match="at least one width"):
        CoreModel.load(json.dumps(without).encode())
