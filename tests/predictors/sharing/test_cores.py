"""Processes that share two cores: what must hold whatever was fitted."""

import json
import math

import pytest

from foretell.errors import ModelError
from foretell.predictors.sharing.cores import CoreModel, shipped, write

MODEL = CoreModel({2: (0.1, 0.2), 3: (0.5, 0.3)})


def test_an_interval_holds_its_value_and_never_a_speed_up() -> None:
    for count in (2, 3):
        one = MODEL.slowdown(count)
        assert 1.0 <= one.low <= one.value <= one.high
    assert MODEL.slowdown(3).value == pytest.approx(math.exp(0.5))
    assert math.log(MODEL.slowdown(3).high) == pytest.approx(0.8)
    with pytest.raises(ModelError, match="Nobody measured 4 processes on 2 cores"):
        MODEL.slowdown(4)


def test_a_model_is_read_as_it_was_written_and_a_damaged_one_is_refused() -> None:
    assert CoreModel.load(write(MODEL, {"groups": 3})) == MODEL
    for damaged in (b"{", b"[]", b"{}", json.dumps({"slowdowns": {"two": {}}}).encode()):
        with pytest.raises(ModelError, match="not a fitted model of shared cores"):
            CoreModel.load(damaged)
    with pytest.raises(ModelError, match="at least one number of processes"):
        CoreModel.load(b'{"slowdowns": {}}')


def test_what_ships_knows_pairs_and_trios() -> None:
    model = shipped()
    assert model is not None
    assert 1.0 <= model.slowdown(2).value < 1.4 < model.slowdown(3).value < 2.2
