"""The fitted numbers: they ship, they are plausible, and a file of other features is refused."""

import json

import pytest

from foretell.devices import find_device
from foretell.errors import ModelError
from foretell.predictors.transfer.model import CLASSES, MEMORIES, load, memory_kind, shipped_numbers, write


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
