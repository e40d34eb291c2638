import pytest

from foretell.frontends.torch import aten_operators
from foretell.frontends.torch.aten import canonical_operator
from foretell.frontends.torch.aten_operators import Ref, find_row, references
from foretell.graph.ir.operators import lookup


def test_every_operator_of_the_table_is_costed():
    missing = {row.op for row in aten_operators._TABLE.values() if row.op and lookup(row.op).kind == "unknown"}
    assert not missing


@pytest.mark.parametrize(
    "target", ["aten.conv2d.default", "torch.ops.aten.conv2d.padding", "aten._convolution.default"]
)
def test_targets_are_found_in_all_spellings(target):
    assert canonical_operator(target) == "Conv"


def test_a_trailing_underscore_means_in_place_but_two_are_a_name():
    assert find_row("aten.relu_.default")[1] is True
    assert find_row("aten.relu.default")[1] is False
    assert find_row("aten.__and__.Tensor") == (aten_operators._TABLE["__and__"], False)
    assert find_row("aten.copy_.default")[0] is not find_row("aten.copy.default")[0]


def test_another_namespace_is_another_operator():
    assert find_row("mylib.relu.default") == (None, False)


def test_references_are_found_inside_lists():
    assert list(references([Ref("a"), 3, [Ref("b"), None, (Ref("c"),)]])) == ["a", "b", "c"]
