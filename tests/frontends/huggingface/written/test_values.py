"""Values of a trace have the shapes, strides, names and lifetimes that tensors of an export have."""

import pytest

from foretell.frontends.huggingface.written.values import Trace, Value, cat
from foretell.graph.ir.strides import contiguous

BATCH = 11


@pytest.fixture
def t() -> Trace:
    return Trace(BATCH, "fp32", training=False, order="a b weight bias")


def test_calls_have_the_names_of_an_export(t: Trace) -> None:
    x = t.input("x", 8, dtype="fp32")
    (x.apply("cos") + 1.0).apply("cos").apply("pow").apply("abs")
    x.with_other("__and__", x, "bool")
    assert [call.name for call in t.calls] == ["cos", "add", "cos_1", "pow_1", "abs_1", "and_1"]


def test_a_cast_to_its_own_dtype_renames_a_value(t: Trace) -> None:
    x = t.input("x", 8, dtype="fp32")
    assert x.to("fp32") is x
    y = x + 1
    assert str(t.calls[-1].arguments["self"]) == "to"
    assert y.to("bf16") is not y


def test_a_value_is_released_when_python_frees_it_and_a_view_holds_what_it_shows(t: Trace) -> None:
    x = t.input("x", 4, 6, dtype="fp32")

    def forward(x: Value) -> Value:
        view = x.apply("exp").view(BATCH, 24)
        kept = x.apply("cos")
        result = view + 1.0
        del view
        return result.apply("sin") + kept.view(BATCH, 24)

    graph = t.graph("m", [forward(x)])
    # what a view shows lives as long as the view; ``kept`` and ``result`` live until the return
    assert graph.held == {"exp": "add", "cos": "add_1", "add": "add_1"}


def test_reshape_is_a_view_only_where_strides_allow_it(t: Trace) -> None:
    x = t.input("x", 4, 6, dtype="fp32")
    assert x.reshape(BATCH, 24).base is x
    turned = x.transpose(1, 2)
    assert turned.shape == (BATCH, 6, 4)
    assert turned.reshape(BATCH, 24).base is None
    assert turned.contiguous() is not turned
    assert x.contiguous() is x
    assert x.view(-1, 6).shape == (4 * BATCH, 6)


def test_an_element_wise_result_lies_as_its_operand(t: Trace) -> None:
    turned = t.input("x", 4, 6, dtype="fp32").transpose(1, 2)
    assert (turned * 2.0).strides == turned.strides
    assert turned.slice(1, 0, 3).apply("exp").strides == (12, 1, 3)
    assert (t.input("y", 1, 6, dtype="fp32") + t.input("z", 4, 6, dtype="fp32")).shape == (BATCH, 4, 6)


@pytest.mark.parametrize(("left", "right", "wide"), [("bf16", "fp32", "fp32"), ("int64", "bf16", "bf16")])
def test_operands_of_two_dtypes_give_the_wider_one(t: Trace, left: str, right: str, wide: str) -> None:
    assert (t.input("x", 2, dtype=left) + t.input("y", 2, dtype=right)).dtype == wide
    assert cat([t.input("v", 2, dtype=left), t.input("w", 2, dtype=right)], 1).dtype == wide


def test_parts_slices_and_expansions_are_views(t: Trace) -> None:
    x = t.input("x", 4, 6, dtype="fp32")
    assert [part.shape for part in x.split([2, 4], -1)] == [(BATCH, 4, 2), (BATCH, 4, 4)]
    assert [part.names for part in x.chunk(2, -1)] == [["chunk.0"], ["chunk.1"]]
    assert x.slice(1, -1).shape == (BATCH, 1, 6)
    assert t.calls[-1].target == "aten.slice"
    assert x.slice(1).strides == x.strides
    assert t.calls[-1].target == "aten.alias"
    assert x.unsqueeze(1).expand(-1, 3, -1, -1).strides == (24, 0, 6, 1)
    assert x.flatten(1, 2).shape == (BATCH, 24)


def test_parameters_are_in_the_order_of_the_family_and_buffers_behind(t: Trace) -> None:
    for part, name in (("b", "weight"), ("a.1", "bias"), ("a.1", "weight"), ("a.0", "weight")):
        with t.within(part):
            t.weight(name, 2)
    t.weight("a.b", 2, kind="buffer")
    graph = t.graph("m", [t.input("x", 2, dtype="fp32") + 1.0])
    assert list(graph.tensors)[:5] == ["p_a_0_weight", "p_a_1_weight", "p_a_1_bias", "p_b_weight", "b_a_b"]


def test_an_empty_value_joins_anything(t: Trace) -> None:
    x = t.input("x", 4, 6, dtype="fp32")
    joined = cat([t.constant(0), x], -2)
    assert joined.shape == x.shape
    assert joined.strides == contiguous(x.shape)
