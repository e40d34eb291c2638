"""Rows at a new batch size, computed from three others, are those that are described unit by unit."""

import numpy as np
import pytest

from foretell.features.batch_rows import RowLines
from foretell.features.schema import COLUMNS
from foretell.features.unit_columns import unit_columns
from foretell.graph import signatures
from foretell.graph.ir.layout import in_channels_last, layouts
from foretell.testing import tiny_graph
from tests.graph.test_batch_sizes import network

AT = {name: position for position, name in enumerate(COLUMNS)}


@pytest.mark.parametrize("make", [network, tiny_graph, lambda: in_channels_last(network())])
def test_they_are_those_of_each_unit(make, monkeypatch):
    monkeypatch.setattr(signatures, "_memo", signatures.Memo())
    graph = make()
    for size in (3, 7, 17):
        unit_columns(graph.at(size, "fp16"))
    for size in (2, 5, 16, 48, 64, 129, 1000):
        sized = graph.at(size, "fp16")
        found = unit_columns(sized)
        assert layouts(sized).sized.family.rows[0].is_known.all()
        with monkeypatch.context() as alone:
            alone.setattr(signatures, "_memo", signatures.Memo())
            expected = unit_columns(make().at(size, "fp16"))
        np.testing.assert_allclose(found.rows, expected.rows, rtol=1e-14)
        assert found.member.tolist() == expected.member.tolist()
        assert found.operators == expected.operators


def test_what_is_no_line_is_not_computed():
    rows = np.full((3, 2, len(COLUMNS)), -1.0)
    for place, size in enumerate((2, 3, 5)):
        rows[place, :, AT["log_input"]] = np.log2(7 * size + 1)
        rows[place, 0, AT["batch"]] = size
        rows[place, 1, AT["batch"]] = size % 3
    assert RowLines.of((2, 3, 5), rows).is_known.tolist() == [True, False]
