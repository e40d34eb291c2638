from dataclasses import replace

import numpy as np
import pytest

from foretell.devices import find_device
from foretell.features import COLUMNS, SCHEMA, extract_units
from foretell.records import Target, Workload
from foretell.testing import tiny_graph

H200 = Target(find_device("h200"))


def column(units, name):
    return units.features[:, COLUMNS.index(name)]


def test_every_launch_of_a_forward_pass_has_a_row():
    graph = tiny_graph()
    units = extract_units(Workload(graph, H200))
    assert set(units.phases) == {"forward"}
    assert len(units) == len(units.nodes) == len(units.bound_us)
    assert np.isfinite(units.features).all()
    assert (units.bound_us > 0).all()
    assert len({position for nodes in units.nodes for position in nodes}) <= len(graph.nodes)


def test_training_adds_backward_and_one_optimizer():
    units = extract_units(Workload(tiny_graph(), H200, mode="training", optimizer="adamw"))
    assert units.phases[-1] == "optimizer"
    assert units.phases.count("optimizer") == 1
    assert "backward" in units.phases
    first = units.phases.index("backward")
    positions = [nodes[0] for nodes, phase in zip(units.nodes, units.phases) if phase == "backward"]
    assert positions == sorted(positions, reverse=True)
    assert set(units.phases[:first]) == {"forward"}
    parameters = sum(tensor.kind == "parameter" for tensor in tiny_graph().tensors.values())
    assert column(units, "nodes")[-1] == parameters > 1


@pytest.mark.parametrize("batch", [2, 64])
def test_a_larger_batch_takes_longer_at_least(batch):
    graph = tiny_graph()
    small = extract_units(Workload(graph, H200))
    large = extract_units(Workload(graph.with_batch(graph.batch_size * batch), H200))
    assert large.operators == small.operators
    assert large.bound_us.sum() > small.bound_us.sum()
    assert (column(large, "log_written_bytes") >= column(small, "log_written_bytes")).all()


def test_half_precision_changes_the_features():
    graph = tiny_graph()
    full = extract_units(Workload(graph, H200))
    half = extract_units(Workload(graph.with_dtype("fp16"), H200, "fp16"))
    assert set(column(full, "dtype")) != set(column(half, "dtype"))
    assert half.bound_us.sum() <= full.bound_us.sum()


def test_a_slice_is_slower_at_least():
    from foretell.devices import parse_slice

    graph = tiny_graph().with_batch(512)
    device = find_device("h200")
    part = replace(H200, slice=parse_slice("mps:10", device))
    full, slow = (extract_units(Workload(graph, target)) for target in (H200, part))
    assert slow.bound_us.sum() > full.bound_us.sum()


def test_the_schema_names_what_a_model_was_fitted_to():
    assert len(SCHEMA) == 16
    assert len(set(COLUMNS)) == len(COLUMNS)
