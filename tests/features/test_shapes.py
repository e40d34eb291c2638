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
        sizes(one_node("Resize", [(1, 3, 8, 8)], [(1, 3, 16, 16)], **attributes))["variant"]
        for attributes in ({}, {"mode": "nearest"}, {"mode": "linear"}, {"mode": "cubic"}, {"mode": "area"})
    ]
    assert result == [0, 0, 1, 2, 3]
    assert sizes(one_node("Relu", [(4,)], [(4,)]))["variant"] == -1


def test_an_attention_has_a_column_for_fusion():
    operands = [(2, 4, 64, 32)] * 3
    assert sizes(one_node("Attention", operands, [(2, 4, 64, 32)]))["fused"] == 1
    folded = [(2, 4, 1, 64, 32)] * 3
    assert sizes(one_node("Attention", folded, [(2, 4, 1, 64, 32)]))["fused"] == 0


def length(column):
    return round(2**column - 1)


def test_dense_operands_are_walked_over_as_one_axis():
    result = sizes(one_node("Add", [(2, 8, 5, 5), (2, 8, 5, 5)], [(2, 8, 5, 5)]))
    assert (result["merged_axes"], result["vectorised"], length(result["log_run"])) == (1, 1, 400)
    scaled = sizes(one_node("Mul", [(2, 8, 5, 5), ()], [(2, 8, 5, 5)]))
    assert (scaled["merged_axes"], scaled["scalars"], scaled["broadcasts"]) == (1, 1, 1)


def test_an_operand_that_is_broadcast_keeps_axes_apart():
    by_channel = sizes(one_node("Mul", [(2, 8, 5, 5), (1, 8, 1, 1)], [(2, 8, 5, 5)]))
    assert (by_channel["merged_axes"], by_channel["vectorised"], length(by_channel["log_run"])) == (3, 0, 25)
    by_feature = sizes(one_node("Add", [(2, 50, 16), (16,)], [(2, 50, 16)]))
    assert (by_feature["merged_axes"], length(by_feature["log_run"]), by_feature["run_alignment"]) == (2, 16, 4)


def test_a_chunk_of_a_concatenation_and_what_lies_inside_a_reduced_axis():
    joined = sizes(one_node("Concat", [(4, 6, 7), (4, 2, 7)], [(4, 8, 7)], axis=1))
    assert (length(joined["log_run"]), length(joined["log_inside"]), joined["run_alignment"]) == (42, 7, 1)
    across = sizes(one_node("Softmax", [(4, 6, 7)], [(4, 6, 7)], axis=1))
    assert (length(across["log_row"]), length(across["log_inside"]), across["row_inside"]) == (6, 7, 0)


def test_a_backward_counts_the_operands_that_get_a_gradient():
    graph = one_node("Mul", [(4, 8), (4, 8)], [(4, 8)])
    cost = graph_costs(graph).nodes[0]
    for needing, gradients in ((None, -1), (frozenset(), 0), (frozenset(graph.nodes[0].inputs), 2)):
        values = describe_shapes(graph, graph.nodes[0], cost, layouts(graph), 132, needing)
        assert dict(zip(SHAPE_COLUMNS, values, strict=True))["gradients"] == gradients


def test_a_variant_where_sizes_do_not_tell_the_kernel():
    def variant(op, outputs=1, **attributes):
        return sizes(one_node(op, [(4, 6)], [(4, 6)] * outputs, **attributes))["variant"]

    assert [variant("Pad", mode=mode) for mode in ("constant", "reflect", "replicate", "circular")] == [0, 1, 2, 3]
    assert (variant("Pad"), variant("Pad", mode="odd")) == (0, 4)
    assert (variant("ReduceMax"), variant("ReduceMax", outputs=2)) == (0, 1)
    scattered = [{}, {"reduction": "none"}, {"reduction": "add"}, {"rows": 1}, {"indexed": 1}]
    assert [variant("ScatterElements", **attributes) for attributes in scattered] == [0, 0, 1, 2, 3]
    assert variant("Relu") == -1


def test_an_einsum_copies_what_does_not_lie_as_the_product_needs_it():
    plain = sizes(one_node("Einsum", [(2, 3, 4), (2, 4, 5)], [(2, 3, 5)], equation="bij,bjk->bik"))
    apart = sizes(one_node("Einsum", [(3, 2, 4), (2, 4, 5)], [(2, 3, 5)], equation="ibj,bjk->bik"))
    odd = sizes(one_node("Einsum", [(2, 3, 4, 6), (2, 4, 5)], [(2, 3, 6, 5)], equation="bijl,bjk->bilk"))
    assert (plain["copied_operands"], plain["log_copied"]) == (0, 0)
    assert apart["copied_operands"] == 0
    assert (odd["copied_operands"], length(odd["log_copied"])) == (1, 144)
