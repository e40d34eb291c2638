"""Workspaces of CUDA's libraries, by the shape of the operator."""

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
