"""Units in the words of adaptation: classes, and likeness that grows with closeness."""

import numpy as np
import pytest

from foretell.devices import find_device
from foretell.features import extract_units
from foretell.features.pooled import DistinctUnits
from foretell.predictors.adapted.units import CLASSES, WIDTH, classes_of, described, work_of
from foretell.records import Target, Workload
from foretell.testing import one_node, tiny_graph


def units_of(graph) -> DistinctUnits:
    return DistinctUnits.of(extract_units(Workload(graph, Target(find_device("h200")))))


@pytest.mark.parametrize(
    ("operator", "inputs", "outputs", "attributes", "expected"),
    [
        ("MatMul", [(64, 32), (32, 16)], [(64, 16)], {}, "products"),
        ("Conv", [(1, 8, 9, 9), (4, 8, 3, 3)], [(1, 4, 7, 7)], {"kernel_shape": (3, 3)}, "convolutions"),
        ("Conv", [(1, 8, 9, 9), (8, 4, 3, 3)], [(1, 8, 7, 7)], {"kernel_shape": (3, 3), "group": 2},
         "grouped convolutions"),
        ("Conv", [(1, 8, 9, 9), (8, 1, 3, 3)], [(1, 8, 7, 7)], {"kernel_shape": (3, 3), "group": 8},
         "depthwise convolutions"),
        ("Relu", [(64, 32)], [(64, 32)], {}, "elementwise"),
    ],
)  # fmt: skip
def test_every_unit_has_a_class(operator, inputs, outputs, attributes, expected) -> None:
    units = units_of(one_node(operator, inputs, outputs, **attributes))
    assert [CLASSES[place] for place in classes_of(units.features)] == [expected]


def test_likeness_is_one_with_itself_and_falls_with_distance() -> None:
    rows = []
    for size in (64, 80, 4096):
        units = units_of(one_node("MatMul", [(size, size), (size, size)], [(size, size)]))
        rows.append(described(units, units.bound_us * 1.5)[0, 1 + len(CLASSES) :])
    itself, near, far = (float(rows[0] @ row) for row in rows)
    assert itself == pytest.approx(1.0, abs=0.25)
    assert itself > near > far


def test_shares_of_classes_add_up() -> None:
    units = units_of(tiny_graph())
    work = work_of(units, np.ones(len(units)))
    assert work.rows.shape == (len(units), WIDTH)
    assert work.shares.sum() == pytest.approx(1.0)
