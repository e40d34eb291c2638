"""Workspaces of CUDA's libraries, by the shape of the operator."""

from math import prod

import pytest

from foretell.graph import Graph, Node
from foretell.graph.ir.layout import layouts
from foretell.graph.memory.workspaces import backward_blocks, is_fused, keeps_mask, library_blocks, padded_mask_bytes
from foretell.testing import chain, one_node
from foretell.units import MIB

Shape = tuple[int, ...]


def blocks(graph: Graph) -> list[int]:
    return library_blocks(graph, graph.nodes[-1], layouts(graph))


def convolution(source: Shape, weight: Shape, out: Shape, dtype: str = "fp16", **attributes: int | Shape) -> int:
    node = Node("c", "Conv", ("x", "w"), ("y",), attributes)
    return sum(blocks(chain([node], {"x": source, "w": weight, "y": out}, ["x"], ["y"]).with_dtype(dtype)))


def test_a_convolution_copies_into_the_layout_of_tensor_cores() -> None:
    image, weight = (8, 64, 56, 56), (128, 64, 3, 3)
    out = (8, 128, 56, 56)
    moved = 8 * 64 * 56 * 56 + 128 * 64 * 9 + 8 * 128 * 56 * 56
    assert convolution(image, weight, out) == 2 * moved
    assert convolution(image, weight, out, "fp32") == 4 * moved  # TF32 runs there too
    small, small_out = (1, 64, 14, 14), (1, 64, 14, 14)
    # with less to do, a kernel in single precision writes its output as it shall lie
    assert convolution(small, (64, 64, 3, 3), small_out, "fp32") == 4 * (64 * 196 + 64 * 64 * 9)


def test_channels_are_padded_to_what_tensor_cores_take() -> None:
    source, weight, out = (32, 3, 256, 256), (480, 3, 32, 32), (32, 480, 8, 8)
    assert convolution(source, weight, out) == 2 * (32 * 8 * 256 * 256 + 480 * 8 * 32 * 32 + 32 * 480 * 64)


@pytest.mark.parametrize(
    ("source", "weight", "out", "attributes"),
    [
        ((8, 64, 56, 56), (64, 1, 3, 3), (8, 64, 56, 56), {"group": 64}),  # depthwise
        ((8, 64, 56, 56), (256, 64, 1, 1), (8, 256, 56, 56), {}),  # a matrix product as it lies
        ((8, 3, 224, 224), (16, 3, 3, 3), (8, 16, 224, 224), {}),  # few channels
    ],
)
def test_convolutions_that_run_as_their_tensors_lie(
    source: Shape, weight: Shape, out: Shape, attributes: dict[str, int]
) -> None:
    assert convolution(source, weight, out, **attributes) == 0


def test_a_tensor_that_lies_so_already_is_not_copied() -> None:
    nodes = [Node("t", "Transpose", ("x",), ("t",), {"perm": (0, 3, 1, 2)}), Node("c", "Conv", ("t", "w"), ("y",))]
    shapes = {"x": (8, 56, 56, 64), "t": (8, 64, 56, 56), "w": (64, 64, 3, 3), "y": (8, 64, 54, 54)}
    assert blocks(chain(nodes, shapes, ["x"], ["y"])) == [0]


def test_a_transposed_sequence_is_copied_first() -> None:
    nodes = [Node("t", "Transpose", ("x",), ("t",), {"perm": (0, 2, 1)}), Node("c", "Conv", ("t", "w"), ("y",))]
    shapes = {"x": (8, 100, 64), "t": (8, 64, 100), "w": (64, 64, 3), "y": (8, 64, 98)}
    copy, _ = blocks(chain(nodes, shapes, ["x"], ["y"]))
    assert copy == 8 * 64 * 100 * 4


@pytest.mark.parametrize(("images", "is_copied"), [(16, False), (17, True)])
def test_a_transposed_convolution_in_full_precision_is_copied_above_2_30_products(images: int, is_copied: bool) -> None:
    node = Node("c", "ConvTranspose", ("x", "w"), ("y",))
    shapes = {"x": (images, 64, 32, 32), "w": (64, 64, 4, 4), "y": (images, 64, 35, 35)}
    assert (sum(blocks(chain([node], shapes, ["x"], ["y"]))) > 0) == is_copied


@pytest.mark.parametrize(
    ("op", "count"),
    [("Softmax", 1), ("Sin", 1), ("Abs", 1), ("Sqrt", 1), ("Cos", 2), ("Pow", 2), ("Rsqrt", 2), ("Reciprocal", 2),
     ("CumSum", 2), ("Relu", 0)],
)  # fmt: skip
def test_a_derivative_of_several_calls_has_results_in_between(op: str, count: int) -> None:
    graph = one_node(op, [(4, 8)], [(4, 8)])
    assert backward_blocks(graph, graph.nodes[0], frozenset({"in0"})) == [4 * 8 * 4] * count
    assert backward_blocks(graph, graph.nodes[0], frozenset()) == []


def test_wide_groups_follow_each_other_in_one_workspace() -> None:
    source, out = (8, 256, 28, 28), (8, 256, 28, 28)
    moved = 2 * (2 * 8 * 256 * 28 * 28 + 256 * 64 * 9)
    assert convolution(source, (256, 64, 3, 3), out, group=4) == moved // 4
    narrow = 2 * (2 * 8 * 256 * 28 * 28 + 256 * 16 * 9)
    assert convolution(source, (256, 16, 3, 3), out, group=16) == narrow


def test_strided_products_of_many_channels_are_copied() -> None:
    source, weight, out = (8, 256, 56, 56), (512, 256, 1, 1), (8, 512, 28, 28)
    assert convolution(source, weight, out, strides=(2, 2)) == 2 * (8 * 256 * 56 * 56 + 8 * 512 * 28 * 28)


def test_a_recurrence_has_a_stream_for_each_layer_and_direction() -> None:
    def parts(layers: int, directions: int, dtype: str = "fp32") -> list[int]:
        shapes = {"x": (2, 32, 16), "h": (layers, 2, 8), "w": (96, 64), "y": (2, 32, 8 * directions)}
        attributes = {"layers": layers, "directions": directions}
        node = Node("r", "GRU", ("x", "h", "w"), ("y",), attributes)
        return blocks(chain([node], shapes, ["x", "h"], ["y"]).with_dtype(dtype))

    weights = 96 * 64 * 4
    assert parts(1, 1)[0] == weights
    assert parts(3, 1)[1] - parts(1, 1)[1] == 2 * 8 * MIB
    assert 4 * 8 * MIB < parts(2, 2)[1] < 4 * 8 * MIB + MIB


def attention(query: Shape, mask: Shape = (), *, transposed: bool = False, dtype: str = "fp32") -> Graph:
    shapes = {"q": query, "k": query, "v": query, "y": query}
    nodes, inputs = [], ["q", "k", "v"]
    if mask:
        shapes |= {"m": mask, "n": mask}
        order = (*range(len(mask) - 2), len(mask) - 1, len(mask) - 2) if transposed else tuple(range(len(mask)))
        nodes.append(Node("t", "Transpose", ("m",), ("n",), {"perm": order}))
        inputs.append("m")
    nodes.append(Node("a", "Attention", ("q", "k", "v", *(["n"] if mask else [])), ("y",)))
    return chain(nodes, shapes, inputs, ["y"]).with_dtype(dtype)


def test_which_attentions_are_fused() -> None:
    def fused(graph: Graph) -> bool:
        return is_fused(graph, graph.nodes[-1])

    assert fused(attention((2, 4, 16, 8)))
    assert fused(attention((2, 4, 16, 8), (1, 4, 16, 16)))
    assert not fused(attention((2, 3, 4, 16, 8)))  # windows as an axis of their own
    assert not fused(attention((2, 4, 16, 8), (1, 4, 16, 16), transposed=True))
    assert fused(one_node("Attention", [(2, 16, 32)] * 3, [(2, 16, 32)], q_num_heads=4, kv_num_heads=4))


def test_an_unfused_attention_writes_its_scores_in_full_precision() -> None:
    shape, scores, operand = (2, 3, 4, 64, 8), 2 * 3 * 4 * 64 * 64 * 4, 2 * 3 * 4 * 64 * 8 * 4
    assert sum(blocks(attention(shape))) == 2 * scores + operand
    assert sum(blocks(attention(shape, dtype="fp16"))) == 5 * scores // 2 + 2 * operand
    assert blocks(attention((2, 4, 64, 8), dtype="fp16")) == [0]


def test_rows_of_a_mask_are_padded() -> None:
    odd, even = attention((2, 4, 19, 8), (1, 4, 19, 19)), attention((2, 4, 16, 8), (1, 4, 16, 16))
    assert blocks(odd) == [4 * 19 * 24 * 4]
    assert padded_mask_bytes(even, even.nodes[-1]) == 0
    assert keeps_mask(even, even.nodes[-1])
    assert not keeps_mask(odd, odd.nodes[-1])  # backward reads the padded copy


def test_the_gradient_of_a_mask_is_written_for_every_item() -> None:
    graph = attention((2, 4, 16, 8), (1, 4, 16, 16))
    assert backward_blocks(graph, graph.nodes[-1], frozenset({"n"})) == [2 * 4 * 16 * 16 * 4]
    assert backward_blocks(graph, graph.nodes[-1], frozenset()) == []
    assert backward_blocks(graph, graph.nodes[0], frozenset({"n"})) == []


def moved(item_bytes: int, *shapes: Shape) -> int:
    """The bytes of some tensors."""
    return item_bytes * sum(prod(shape) for shape in shapes)


IMAGE, OUT = (32, 512, 4, 8), (32, 512, 4, 8)


@pytest.mark.parametrize(
    ("source", "weight", "out", "strides", "copied"),
    [
        # a product of pixels and channels: with much to do (more than 2^28 products) on few pixels (up to 56)
        ((32, 512, 4, 8), (512, 512, 1, 1), (32, 512, 4, 8), (1, 1), []),  # 2^28: not more
        ((33, 512, 4, 8), (512, 512, 1, 1), (33, 512, 4, 8), (1, 1), [(33, 512, 4, 8)] * 2),
        ((64, 512, 7, 8), (512, 512, 1, 1), (64, 512, 7, 8), (1, 1), [(64, 512, 7, 8)] * 2),
        ((64, 512, 3, 19), (512, 512, 1, 1), (64, 512, 3, 19), (1, 1), []),
        # with strides, by the width of the result alone
        ((2, 16, 8, 8), (180, 16, 1, 1), (2, 180, 4, 4), (2, 2), []),
        ((2, 16, 8, 8), (181, 16, 1, 1), (2, 181, 4, 4), (2, 2), [(2, 16, 8, 8), (2, 184, 4, 4)]),
        ((2, 16, 8, 8), (184, 16, 1, 1), (2, 184, 8, 4), (1, 2), [(2, 16, 8, 8), (2, 184, 8, 4)]),
    ],
)
def test_which_products_of_single_pixels_are_copied(
    source: Shape, weight: Shape, out: Shape, strides: Shape, copied: list[Shape]
) -> None:
    assert convolution(source, weight, out, strides=strides) == moved(2, *copied)


@pytest.mark.parametrize(
    ("source", "weight", "out", "dtype", "copied"),
    [
        # few channels: by how many numbers are under the window and how much there is to do
        ((64, 1, 136, 64), (64, 1, 73, 1), (64, 64, 64, 64), "fp16", []),  # 73 numbers
        ((64, 1, 137, 64), (64, 1, 74, 1), (64, 64, 64, 64), "fp16", [(64, 8, 137, 64), (64, 8, 74, 1), (64, 64, 64, 64)]),  # noqa: E501
        ((64, 2, 100, 64), (64, 2, 37, 1), (64, 64, 64, 64), "fp16", [(64, 8, 100, 64), (64, 8, 37, 1), (64, 64, 64, 64)]),  # noqa: E501
        ((8, 8, 79, 64), (64, 8, 16, 1), (8, 64, 64, 64), "fp16", []),  # 2^28 products: not more
        ((9, 8, 79, 64), (64, 8, 16, 1), (9, 64, 64, 64), "fp16", [(9, 8, 79, 64), (64, 8, 16, 1), (9, 64, 64, 64)]),
        ((64, 2, 127, 64), (64, 2, 64, 1), (64, 64, 64, 64), "fp32", []),  # 128 numbers
        ((64, 3, 106, 64), (64, 3, 43, 1), (64, 64, 64, 64), "fp32", [(64, 4, 106, 64), (64, 4, 43, 1), (64, 64, 64, 64)]),  # noqa: E501
        ((16, 3, 106, 64), (64, 3, 43, 1), (16, 64, 64, 64), "fp32", []),
        ((16, 8, 95, 64), (64, 8, 32, 1), (16, 64, 64, 64), "fp32", []),  # 2^30 products: not more
        ((17, 8, 95, 64), (64, 8, 32, 1), (17, 64, 64, 64), "fp32", [(17, 8, 95, 64), (64, 8, 32, 1), (17, 64, 64, 64)]),  # noqa: E501
        # more channels: always in half precision
        ((1, 15, 6, 6), (8, 15, 3, 3), (1, 8, 4, 4), "fp16", []),
        ((1, 16, 6, 6), (8, 16, 3, 3), (1, 8, 4, 4), "bf16", [(1, 16, 6, 6), (8, 16, 3, 3), (1, 8, 4, 4)]),
        ((1, 17, 6, 6), (9, 17, 3, 3), (1, 9, 4, 4), "fp16", [(1, 24, 6, 6), (16, 24, 3, 3), (1, 16, 4, 4)]),
        ((1, 16, 6, 8), (8, 16, 1, 3), (1, 8, 6, 6), "fp16", [(1, 16, 6, 8), (8, 16, 1, 3), (1, 8, 6, 6)]),
        # in single precision not for little work with up to 48 channels; the result only where there is much to do
        ((2, 16, 35, 35), (64, 16, 4, 4), (2, 64, 32, 32), "fp32", []),  # 2^25 products: not more
        ((3, 16, 35, 35), (64, 16, 4, 4), (3, 64, 32, 32), "fp32", [(3, 16, 35, 35), (64, 16, 4, 4)]),
        ((1, 48, 6, 6), (8, 48, 3, 3), (1, 8, 4, 4), "fp32", []),
        ((1, 49, 6, 6), (8, 49, 3, 3), (1, 8, 4, 4), "fp32", [(1, 52, 6, 6), (8, 52, 3, 3)]),
        ((16, 16, 35, 35), (64, 16, 4, 4), (16, 64, 32, 32), "fp32", [(16, 16, 35, 35), (64, 16, 4, 4)]),  # 2^28
        ((17, 16, 35, 35), (64, 16, 4, 4), (17, 64, 32, 32), "fp32", [(17, 16, 35, 35), (64, 16, 4, 4), (17, 64, 32, 32)]),  # noqa: E501
        # sequences, and a matrix that is no convolution
        ((8, 64, 100), (64, 64, 3), (8, 64, 98), "fp16", [(8, 64, 100), (64, 64, 3), (8, 64, 98)]),
        ((8, 64), (64, 64), (8, 64), "fp16", []),
    ],
)  # fmt: skip
def test_which_convolutions_are_copied(
    source: Shape, weight: Shape, out: Shape, dtype: str, copied: list[Shape]
) -> None:
    assert convolution(source, weight, out, dtype) == moved(4 if dtype == "fp32" else 2, *copied)


def test_only_wide_groups_in_half_precision_follow_each_other() -> None:
    source, out = (8, 64, 28, 28), (8, 64, 28, 28)
    full_shapes = [source, (64, 32, 3, 3), out]
    assert convolution(source, (64, 32, 3, 3), out, group=2) == moved(2, *full_shapes)  # 32 channels a group
    wide, wide_out = (8, 66, 28, 28), (8, 64, 28, 28)
    assert convolution(wide, (64, 33, 3, 3), wide_out, group=2) == round(
        (moved(2, wide) * 40 / 33 + moved(2, (64, 40, 3, 3), wide_out)) / 2
    )
    full = (8, 128, 28, 28), (128, 64, 3, 3), (8, 128, 28, 28)
    assert convolution(*full, "fp32", group=2) == moved(4, *full)
    assert convolution((8, 1, 28, 28), (64, 1, 9, 9), (8, 64, 28, 28), group=1) == 0, "one channel is not depthwise"


@pytest.mark.parametrize(
    ("op", "directions", "gates"),
    [("LSTM", 1, 5), ("LSTM", 2, 8), ("GRU", 1, 4), ("GRU", 2, 6), ("RNN", 1, 6), ("RNN", 2, 10)],
)
def test_the_workspace_of_a_recurrence(op: str, directions: int, gates: int) -> None:
    def parts(dtype: str, **attributes: int) -> list[int]:
        shapes = {"x": (2, 32, 16), "h": (1, 2, 8), "w1": (96, 64), "w2": (7,), "y": (2, 32, 8 * directions)}
        node = Node("r", op, ("x", "h", "w1", "", "w2"), ("y",), attributes)
        return blocks(chain([node], shapes, ["x", "h"], ["y"]).with_dtype(dtype))

    both = {"directions": directions} if directions > 1 else {}
    weights, rest = 4 * (96 * 64 + 7), 4 * 2 * 32 * (gates * 8 * directions + 2 * 16)
    assert parts("fp32", **both) == [weights, 8 * MIB * directions + rest]
    assert parts("fp16", **both) == [weights // 2, 8 * MIB * directions + rest // 2]
    assert parts("bf16", **both) == [weights // 2, 8 * MIB * directions + rest // 2 + weights // 2]
    assert parts("fp32", layers=3, **both) == [weights, 3 * 8 * MIB * directions + rest]


def test_other_operators_need_no_workspace() -> None:
    assert blocks(one_node("Relu", [(4,)], [(4,)])) == []
    assert blocks(one_node("LSTMCell", [(2, 5), (2, 3), (2, 3), (12, 5), (12, 3)], [(2, 3)])) == []
    unused = chain([Node("r", "LSTM", ("x",), ("", "h"))], {"x": (2, 3, 4), "h": (1, 3, 4)}, ["x"], ["h"])
    assert blocks(unused) == []


def test_what_decides_whether_an_attention_is_fused() -> None:
    def fused(graph: Graph) -> bool:
        return is_fused(graph, graph.nodes[-1])

    packed = one_node("Attention", [(2, 16, 32), (32, 96), (96,)], [(2, 16, 32)])
    assert fused(packed), "all three operands in the last axis"
    assert fused(one_node("Attention", [(2, 16, 32), (2, 16, 32)], [(2, 16, 32)]))
    assert not fused(one_node("Attention", [(4, 16, 32)] * 3, [(4, 16, 32)])), "three axes without heads"
    assert not fused(one_node("Attention", [(16, 32)] * 3, [(16, 32)]))
    assert not fused(attention((2, 3, 4, 16, 8), (16,))), "the mask does not say how many axes there are"
    assert not fused(attention((2, 3, 4, 16, 8), (16, 16)))
    assert fused(attention((2, 4, 16, 8), (1, 4, 16, 1)))


def test_a_mask_that_is_absent_or_has_no_axes_takes_nothing() -> None:
    absent = one_node("Attention", [(2, 4, 16, 8)] * 3 + [None, (2, 4, 3, 8)], [(2, 4, 16, 8)])
    assert padded_mask_bytes(absent, absent.nodes[0]) == 0
    assert not keeps_mask(absent, absent.nodes[0])
    scalar = one_node("Attention", [(2, 4, 16, 8)] * 3 + [()], [(2, 4, 16, 8)])
    assert padded_mask_bytes(scalar, scalar.nodes[0]) == 0
    plain = attention((2, 4, 16, 8))
    assert not keeps_mask(plain, plain.nodes[0])
    other = one_node("Where", [(8,)] * 4, [(8,)])
    assert not keeps_mask(other, other.nodes[0])
    windows = attention((2, 3, 4, 16, 8), (4, 16, 16))
    assert not keeps_mask(windows, windows.nodes[-1]), "an attention that is not fused keeps its scores instead"


def test_an_unfused_attention_takes_the_larger_of_its_two_moments() -> None:
    def parts(queries: int, keys: int, dtype: str) -> list[int]:
        shapes = [(2, 3, 4, queries, 64), (2, 3, 4, keys, 64), (2, 3, 4, keys, 64)]
        return blocks(one_node("Attention", shapes, [shapes[0]], dtype=dtype))

    query, key, scores = (24 * count * 4 for count in (16 * 64, 8 * 64, 16 * 8))
    assert parts(16, 8, "fp32") == [query, query, key, scores]
    assert parts(16, 8, "bf16") == [query, key, key, query, key, query // 2, key // 2, scores]
    query, key, scores = (24 * count * 4 for count in (16 * 64, 512 * 64, 16 * 512))
    assert parts(512, 512, "fp32")[-1] == 24 * 512 * 512 * 4
    assert parts(16, 512, "fp16") == [query, key, key, query, key, query // 2, key // 2, scores]
    large = 24 * 512 * 512 * 4
    assert parts(512, 512, "fp16") == [24 * 512 * 256, 24 * 512 * 256, large, large, large // 2]


def test_the_gradient_of_scores_has_the_precision_of_the_mask() -> None:
    half = attention((2, 4, 16, 8), (1, 4, 16, 16), dtype="fp16")
    assert backward_blocks(half, half.nodes[-1], frozenset({"n"})) == [2 * 4 * 16 * 16 * 2]
    windows = attention((2, 3, 4, 16, 8))
    assert backward_blocks(windows, windows.nodes[-1], frozenset()) == [2 * 3 * 4 * 16 * 16 * 4]


def test_a_mask_adds_nothing_to_an_attention_that_is_not_fused() -> None:
    assert blocks(attention((2, 3, 4, 64, 8), (64, 64))) == blocks(attention((2, 3, 4, 64, 8)))


@pytest.mark.parametrize("groups", [2, 64])
def test_a_depthwise_convolution_is_never_copied_however_much_there_is_to_do(groups: int) -> None:
    image = (1024 // groups * 4, groups, 64, 64)
    assert convolution(image, (groups, 1, 9, 9), image, group=groups) == 0
