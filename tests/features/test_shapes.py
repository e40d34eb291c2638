from foretell.features.shapes import SHAPE_COLUMNS, describe_shapes
from foretell.graph import graph_costs
from foretell.graph.ir.layout import layouts
from foretell.testing import one_node


def sizes(graph, sms=132):
    table = graph_costs(graph)
    values = describe_shapes(graph, graph.nodes[0], table.nodes[0], layouts(graph), sms)
    return dict(zip(SHAPE_COLUMNS, values, strict=True))


def test_a_convolution_is_the_product_it_computes():
    graph = one_node("Conv", [(4, 32, 28, 28), (64, 16, 3, 3)], [(4, 64, 28, 28)], group=2, kernel_shape=(3, 3))
    result = sizes(graph)
    assert result["groups"] == 2
    assert (result["group_inputs"], result["group_outputs"]) == (16, 32)
    assert round(2 ** result["log_m"] - 1) == 4 * 28 * 28
    assert round(2 ** result["log_n"] - 1) == 32
    assert round(2 ** result["log_k"] - 1) == 16 * 9
    assert result["waves"] == 25 * 1 * 2 / 132
    assert result["queries"] == -1


def test_a_product_of_batches_counts_its_batches():
    graph = one_node("MatMul", [(2, 8, 100, 64), (2, 8, 64, 30)], [(2, 8, 100, 30)])
    result = sizes(graph)
    assert round(2 ** result["log_many"] - 1) == 16
    assert round(2 ** result["log_m"] - 1) == 100
    assert round(2 ** result["log_k"] - 1) == 64
    assert result["n_alignment"] == 1


def test_an_attention_has_a_column_for_its_mask():
    shapes = [(2, 4, 50, 64), (2, 4, 77, 64), (2, 4, 77, 64)]
    plain = sizes(one_node("Attention", shapes, [(2, 4, 50, 64)]))
    masked = sizes(one_node("Attention", [*shapes, (1, 4, 50, 77)], [(2, 4, 50, 64)]))
    assert (plain["queries"], plain["keys"], plain["head_size"]) == (50, 77, 64)
    assert plain["masked"] == 0 < masked["masked"]


def test_rows_of_a_norm_are_its_groups():
    graph = one_node("GroupNormalization", [(2, 32, 7, 7)], [(2, 32, 7, 7)], num_groups=4)
    result = sizes(graph)
    assert round(2 ** result["log_rows"] - 1) == 8
    assert round(2 ** result["log_row"] - 1) == 8 * 49


def test_a_recurrence_has_columns_for_steps_and_sizes():
    torch_like = one_node("LSTM", [(4, 50, 32)], [(4, 50, 128)], directions=2, layers=3, hidden_size=64, batch_first=1)
    result = sizes(torch_like)
    assert (result["layers"], result["directions"]) == (3, 2)
    assert round(2 ** result["log_n"] - 1) == 64
    assert round(2 ** result["log_k"] - 1) == 32
    assert result["steps"] * round(2 ** result["log_m"] - 1) == 4 * 50


def test_a_resize_has_a_column_for_its_mode():
    result = [
        sizes(one_node("Resize", [(1, 3, 8, 8)], [(1, 3, 16, 16)], **attributes))["resizing"]
        for attributes in ({}, {"mode": "nearest"}, {"mode": "linear"}, {"mode": "cubic"}, {"mode": "area"})
    ]
    assert result == [0, 0, 1, 2, 3]
    assert sizes(one_node("Relu", [(4,)], [(4,)]))["resizing"] == -1


def test_an_attention_has_a_column_for_fusion():
    operands = [(2, 4, 64, 32)] * 3
    assert sizes(one_node("Attention", operands, [(2, 4, 64, 32)]))["fused"] == 1
    folded = [(2, 4, 1, 64, 32)] * 3
    assert sizes(one_node("Attention", folded, [(2, 4, 1, 64, 32)]))["fused"] == 0
