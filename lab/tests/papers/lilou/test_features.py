"""What LILOU sees of nodes, units and devices."""

import numpy as np

from foretell.devices import effective, find_device, parse_slice
from foretell.features import extract_units
from foretell.features.units import DTYPES
from foretell.records import Target, Workload
from foretell.testing import tiny_graph
from lab.papers.lilou.features import DEVICE_COLUMNS, SIZES, describe_device, describe_nodes, describe_units


def test_sizes_of_a_node_are_those_of_one_item() -> None:
    table = describe_nodes(tiny_graph(batch_size=2))
    input_size, output_size, weight_size, flops = np.exp2(table.sizes[0].astype(np.float64)) - 1
    assert round(input_size) == 3 * 16 * 16
    assert round(output_size) == 8 * 14 * 14
    assert round(weight_size) == 8 * 3 * 3 * 3
    assert round(flops) == 2 * 27 * 8 * 14 * 14
    assert np.allclose(describe_nodes(tiny_graph(batch_size=5)).sizes, table.sizes)
    assert table.dtypes.tolist() == [DTYPES.index("fp32")] * 5
    assert len(set(table.operators.tolist())) == 5


def test_units_are_nodes_of_the_whole_batch() -> None:
    units = extract_units(Workload(tiny_graph(batch_size=2), Target(find_device("h200"))))
    table, nodes = describe_units(units.features), describe_nodes(tiny_graph(batch_size=1))
    assert len(table) == len(units)
    first = np.exp2(table.sizes[0].astype(np.float64)) - 1
    assert np.allclose(first[:3], [2 * 3 * 16 * 16, 2 * 8 * 14 * 14, 8 * 27], rtol=1e-3)
    assert table.operators[0] == nodes.operators[0]
    assert np.isclose(table.sizes[0, SIZES.index("log_flops")], nodes.sizes[0, SIZES.index("log_flops")] + 1, atol=1e-3)


def test_distinct_rows_make_all_rows() -> None:
    table = describe_nodes(tiny_graph())
    twice = table.of(np.array([0, 1, 0, 2, 1]))
    distinct, place = twice.distinct()
    assert len(distinct) == 3
    assert np.array_equal(distinct.of(place).sizes, twice.sizes)
    assert np.array_equal(distinct.of(place).operators, twice.operators)


def test_a_slice_has_fewer_cores_and_the_same_clock() -> None:
    h200 = find_device("h200")
    full, half = (describe_device(effective(h200, part)) for part in (None, parse_slice("mps:50", h200)))
    by_column = dict(zip(DEVICE_COLUMNS, zip(full.tolist(), half.tolist(), strict=True), strict=True))
    assert by_column["sms"] == (132.0, 66.0)
    assert by_column["cores"][0] == 2 * by_column["cores"][1]
    assert by_column["clock_ghz"][0] == by_column["clock_ghz"][1]
    assert by_column["compute_capability"] == (9.0, 9.0)
