"""NeuSight's products sum over N: the grids of their kernels cover M × K."""

import pytest

from lab.transfer.tables import NEUSIGHT_SIZES, neusight_graph


@pytest.mark.parametrize(("operator", "shape"), [("linear", (4, 7)), ("bmm", (2, 4, 7))])
def test_products_sum_over_n(operator: str, shape: tuple[int, ...]) -> None:
    sizes = {"B": 2.0, "M": 4.0, "N": 5.0, "K": 7.0}
    graph = neusight_graph(operator, {name: sizes[name] for name in NEUSIGHT_SIZES[operator]})
    assert graph.tensors["y"].shape == shape
