"""The least time that a kernel allows: one block of threads computes the statistics of a group."""

import numpy as np
import pytest

from foretell.devices import find_device
from foretell.features import extract_units
from foretell.features.pooled import DistinctUnits
from foretell.features.units import COLUMNS, PHASES
from foretell.graph import Graph, Node, Tensor
from foretell.predictors.unit.floors import least_us
from foretell.predictors.unit.predictor import shipped
from foretell.records import Target, Workload


def group_norm(groups: int, length: int = 500_000, channels: int = 8) -> Workload:
    tensors = [
        Tensor("x", (1, channels, length), "fp32", "input"),
        Tensor("scale", (channels,), "fp32", "parameter"),
        Tensor("shift", (channels,), "fp32", "parameter"),
        Tensor("y", (1, channels, length), "fp32"),
    ]
    node = Node("norm", "GroupNormalization", ("x", "scale", "shift"), ("y",), {"num_groups": groups})
    graph = Graph.build("norm", [node], {tensor.name: tensor for tensor in tensors}, ["x"], ["y"], batch_size=1)
    return Workload(graph, Target(find_device("h200")))


@pytest.mark.parametrize(("groups", "elements"), [(1, 4_000_000), (4, 1_000_000)])
def test_a_group_takes_as_long_as_one_block_needs_for_its_elements(groups: int, elements: int) -> None:
    units = extract_units(group_norm(groups))
    assert least_us(units.features) == pytest.approx([elements * 0.375e-3], rel=1e-4)


def test_the_shipped_model_keeps_the_floor() -> None:
    # one group of 4 million elements: 1.5 ms in one block, while the whole device could read it in 7 µs
    units = DistinctUnits.of(extract_units(group_norm(1)))
    assert (shipped("h200", "unit-network").times_us(units) >= 1500.0 * (1 - 1e-6)).all()


def test_other_operators_have_no_floor() -> None:
    units = extract_units(group_norm(1))
    backward, other = units.features.copy(), units.features.copy()
    backward[:, COLUMNS.index("phase")] = PHASES.index("backward")
    other[:, COLUMNS.index("operator")] += 1
    assert not least_us(backward).any()
    assert not least_us(other).any()
    assert least_us(np.zeros((0, units.features.shape[1]), np.float32)).shape == (0,)
