"""The fitted numbers: they ship, they are plausible, and a file of other features is refused."""

import json

import numpy as np
import pytest

from foretell.devices import find_device
from foretell.errors import ModelError
from foretell.predictors.transfer.model import CLASSES, _apart, _together, load, shipped_numbers, write
from foretell.predictors.transfer.places import MEMORIES, Places, memory_kind
from foretell.records import Target


def test_the_shipped_numbers_are_plausible() -> None:
    numbers = shipped_numbers()
    assert set(numbers.memory_shares) == set(MEMORIES)
    assert all(0.5 < share <= 1.0 for share in numbers.memory_shares.values())
    assert numbers.memory_shares["checked"] < numbers.memory_shares["plain"]
    assert 0.5 < numbers.vector_demand < 1.1
    assert set(numbers.factors) == set(CLASSES)
    assert all(abs(factor) < 0.5 for factor in (*numbers.factors.values(), *numbers.old_factors.values()))


def test_a_file_is_read_as_it_was_written_and_a_foreign_one_is_refused() -> None:
    numbers = shipped_numbers()
    data = write(numbers, {"predictor": "transfer"})
    assert load(data) == numbers
    with pytest.raises(ModelError, match="fitted to other features"):
        load(json.dumps({**json.loads(data), "schema": "other"}).encode())
    with pytest.raises(ModelError, match="no fitted numbers"):
        load(b"{}")
    fitted = json.loads(data)
    good = fitted["fitted"]["shapes"]["rows"]
    for shapes in (
        {"nothing": good},
        {"rows": {**good, "terms": good["terms"][1:]}},
        {"rows": {**good, "deviations": [0.0] * len(good["deviations"])}},
        {"rows": {**good, "level": "high"}},
        {"rows": {"terms": []}},
    ):
        fitted["fitted"]["shapes"] = shapes
        with pytest.raises(ModelError, match="no fitted numbers"):
            load(json.dumps(fitted).encode())


def test_kinds_of_memory() -> None:
    kinds = {name: memory_kind(find_device(name)) for name in ("a30", "l40s", "a10g", "rtx-5090", "v100-pcie")}
    assert kinds == {
        "a30": "stacked",
        "l40s": "checked",
        "a10g": "checked",
        "rtx-5090": "plain",
        "v100-pcie": "stacked",
    }


def test_streams_load_and_compute_at_the_same_time() -> None:
    peak_us, longer_us = np.array([10.0, 10.0]), np.array([20.0, 0.0])
    streams, others = np.array([True, True]), np.array([False, False])
    work_us = _apart(peak_us, longer_us)
    assert _together(peak_us, work_us, streams).tolist() == pytest.approx([30.0, 10.0])
    assert _together(peak_us, longer_us, others).tolist() == pytest.approx([30.0, 10.0])
    # with a memory five times slower and SMs twice as slow, the wait for the memory hides most of the work
    told = _together(5 * peak_us, 2 * work_us, streams)[0]
    assert 2 * work_us[0] < told < 0.8 * (5 * 10.0 + 2 * 20.0)


def test_half_as_many_lanes_make_an_sm_slower() -> None:
    h200 = find_device("h200")
    lanes = {name: Places.of(Target(find_device(name)).hardware, h200).lanes[0] for name in ("a100", "rtx-3090", "t4")}
    assert lanes == pytest.approx({"a100": 2.0, "rtx-3090": 1.0, "t4": 2.0}, rel=0.02)
