"""What adaptation starts from: the units of the base's answer add up to its latency."""

import pytest

from foretell.devices import find_device
from foretell.predictors import find_predictor
from foretell.predictors.adapted.base import base_of
from foretell.records import Target, Workload
from foretell.testing import one_node, tiny_graph


@pytest.mark.parametrize(("device", "name"), [("t4", "transfer"), ("mi300x", "roofline"), ("h200", "unit-network")])
def test_the_units_add_up_to_the_answer_of_the_base(device: str, name: str) -> None:
    work = Workload(tiny_graph(8), Target(find_device(device)))
    base = base_of(work, find_predictor(None, device))
    assert base is not None
    assert base.prediction.predictor == name
    assert float(base.unit_us @ base.distinct.counts) == pytest.approx(1000 * base.prediction.latency_ms.value)
    assert len(base.unit_us) == len(base.distinct)
    assert (base.unit_us > 0).all()


def test_views_alone_have_nothing_to_adapt() -> None:
    view = one_node("Reshape", [(4, 8), (2,)], [(8, 4)])
    assert base_of(Workload(view, Target(find_device("t4"))), find_predictor(None, "t4")) is None
