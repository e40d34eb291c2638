"""Strides and shared storage, against torch where it is installed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretell.graph import Node
from foretell.graph.ir.layout import (
    Layout,
    channels_last,
    distinct_elements,
    in_channels_last,
    is_channels_last,
    layouts,
)
from foretell.graph.ir.strides import contiguous, is_contiguous, viewed_strides
from foretell.testing import chain, one_node, tiny_graph


def test_contiguous() -> None:
    assert contiguous(()) == ()
    assert contiguous((5,)) == (1,)
    assert contiguous((2, 3, 4)) == (12, 4, 1)
    assert is_contiguous((1, 4), (99, 1))
    assert not is_contiguous((4, 2), (1, 4))


def test_distinct_elements() -> None:
    assert distinct_elements((2, 3), (3, 1)) == 6
    assert distinct_elements((64, 3), (0, 1)) == 3
    assert distinct_elements((0, 3), (0, 1)) == 0


@st.composite
def laid_out_tensors(draw: st.DrawFn) -> object:
    """A torch tensor that was permuted, sliced and expanded."""
    import torch

    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    tensor = torch.empty(shape)
    for action in draw(st.lists(st.sampled_from(["permute", "slice", "expand", "unsqueeze"]), max_size=3)):
        if action == "permute":
            tensor = tensor.permute(draw(st.permutations(range(tensor.ndim))))
        elif action == "slice":
            axis = draw(st.integers(0, tensor.ndim - 1))
            step = draw(st.integers(1, 2))
            tensor = tensor[(slice(None),) * axis + (slice(0, None, step),)]
        elif action == "expand" and 1 in tensor.shape:
            tensor = tensor.expand([draw(st.integers(1, 3)) if d == 1 else d for d in tensor.shape])
        elif action == "unsqueeze":
            tensor = tensor.unsqueeze(draw(st.integers(0, tensor.ndim)))
    return tensor


@st.composite
def factorings(draw: st.DrawFn, count: int) -> tuple[int, ...]:
    """A shape of ``count`` elements."""
    shape = []
    while count > 1 and len(shape) < 5:
        factor = draw(st.sampled_from([d for d in range(1, count + 1) if count % d == 0]))
        shape.append(factor)
        count //= factor
    return (*shape, count) if count > 1 or not shape else tuple(shape)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_views_are_those_of_torch(data: st.DataObject) -> None:
    pytest.importorskip("torch")
    tensor = data.draw(laid_out_tensors())
    new_shape = data.draw(factorings(tensor.numel()))  # type: ignore[attr-defined]
    mine = viewed_strides(tuple(tensor.shape), tensor.stride(), new_shape)  # type: ignore[attr-defined]
    try:
        theirs = tensor.view(new_shape).stride()  # type: ignore[attr-defined]
    except RuntimeError:
        theirs = None
    if mine is None or theirs is None:
        assert mine == theirs
    else:
        assert [s for s, d in zip(mine, new_shape) if d != 1] == [s for s, d in zip(theirs, new_shape) if d != 1]
    assert is_contiguous(tuple(tensor.shape), tensor.stride()) == tensor.is_contiguous()  # type: ignore[attr-defined]


def test_views_share_storage_and_others_own_theirs() -> None:
    nodes = [
        Node("t", "Transpose", ("x",), ("t",), {"perm": (1, 0)}),
        Node("s", "Slice", ("t",), ("s",), {"axes": (0,), "steps": (2,)}),
        Node("r", "Relu", ("s",), ("r",)),
        Node("i", "Relu", ("r",), ("i",), {"inplace": 1}),
        Node("sel", "Select", ("i",), ("sel",), {"axis": 0}),
        Node("e", "Expand", ("sel",), ("e",)),
        Node("c", "Contiguous", ("t",), ("c",)),
        Node("h", "Split", ("i",), ("h1", "h2"), {"axis": 0}),
    ]
    shapes = {
        "x": (4, 6),
        "t": (6, 4),
        "s": (3, 4),
        "r": (3, 4),
        "i": (3, 4),
        "sel": (4,),
        "e": (5, 4),
        "c": (6, 4),
        "h1": (1, 4),
        "h2": (2, 4),
    }
    result = layouts(chain(nodes, shapes, ["x"], ["e", "c", "h1", "h2"]))
    assert result["t"] == Layout("x", (1, 6))
    assert result["s"] == Layout("x", (2, 6))
    assert result["r"] == Layout("r", (1, 3))  # an element-wise kernel keeps the order of axes, packed
    assert result["i"] == result["r"]
    assert result["sel"] == Layout("r", (3,))
    assert result["e"] == Layout("r", (0, 3))
    assert result["c"] == Layout("c", (4, 1))
    assert result["h1"].storage == result["h2"].storage == "r"


@pytest.mark.parametrize("op", ["Reshape", "Flatten"])
def test_axes_that_are_apart_are_merged_by_a_copy(op: str) -> None:
    nodes = [
        Node("t", "Transpose", ("x",), ("t",), {"perm": (0, 2, 1)}),
        Node("f", op, ("t",), ("f",)),
    ]
    result = layouts(chain(nodes, {"x": (2, 3, 4), "t": (2, 4, 3), "f": (2, 12)}, ["x"], ["f"]))
    assert result["f"] == Layout("f", (12, 1))


def test_an_einsum_whose_operand_is_absent_lies_row_major() -> None:
    graph = one_node("Einsum", [None, (4, 5)], [(4, 5)], equation="ij,jk->ik")
    assert layouts(graph)["out0"] == Layout("out0", (5, 1))


def test_fused_attention_writes_heads_last() -> None:
    graph = one_node("Attention", [(2, 3, 5, 4)] * 3, [(2, 3, 5, 4)])
    assert layouts(graph)["out0"].strides == (60, 4, 12, 1)
    assert layouts(graph) is layouts(graph)


def _permuted_image(*nodes: Node, **shapes: tuple[int, ...]) -> dict[str, Layout]:
    """An image that lies channels-last after a permutation, and what is made of it."""
    first = Node("permute", "Transpose", ("x",), ("image",), {"perm": (0, 3, 1, 2)})
    known = {"x": (2, 8, 8, 16), "image": (2, 16, 8, 8), **shapes}
    return dict(layouts(chain([first, *nodes], known, ["x"], [nodes[-1].outputs[0]])))


def test_channels_last_strides() -> None:
    assert channels_last((2, 3, 4, 5)) == (60, 1, 15, 3)
    assert is_channels_last((2, 3, 4, 5), channels_last((2, 3, 4, 5)))
    assert not is_channels_last((2, 3, 4, 5), contiguous((2, 3, 4, 5)))
    assert not is_channels_last((2, 3), (3, 1))
    assert is_channels_last((2, 3, 4, 5), (120, 1, 30, 6)), "a part of the channels lies so too"
    assert not is_channels_last((2, 3, 1, 1), (3, 1, 3, 3)), "a pooled image lies both ways"


def test_convolutions_norms_and_pooling_write_as_they_read() -> None:
    result = _permuted_image(
        Node("conv", "Conv", ("image", "w"), ("a",), {"pads": (1, 1, 1, 1)}),
        Node("norm", "BatchNormalization", ("a", "ws", "wb", "wm", "wv"), ("n",)),
        Node("pool", "MaxPool", ("n",), ("p",), {"kernel_shape": (2, 2), "strides": (2, 2)}),
        w=(32, 16, 3, 3), a=(2, 32, 8, 8), n=(2, 32, 8, 8), ws=(32,), wb=(32,), wm=(32,), wv=(32,), p=(2, 32, 4, 4),
    )  # fmt: skip
    assert all(is_channels_last((2, 32, 8, 8), result[name].strides) for name in ("a", "n"))
    assert result["p"].strides == channels_last((2, 32, 4, 4))


def test_a_gain_before_the_image_keeps_its_layout() -> None:
    result = _permuted_image(Node("scale", "Mul", ("wg", "image"), ("y",)), wg=(16, 1, 1), y=(2, 16, 8, 8))
    assert result["y"].strides == channels_last((2, 16, 8, 8))


def test_a_concatenation_lies_channels_last_only_where_all_parts_do() -> None:
    both = _permuted_image(Node("cat", "Concat", ("image", "image"), ("y",), {"axis": 1}), y=(2, 32, 8, 8))
    one = _permuted_image(Node("cat", "Concat", ("image", "w"), ("y",), {"axis": 1}), w=(2, 16, 8, 8), y=(2, 32, 8, 8))
    assert both["y"].strides == channels_last((2, 32, 8, 8))
    assert one["y"].strides == contiguous((2, 32, 8, 8))


def test_some_channels_of_a_picture_of_one_point_lie_row_major():
    assert not is_channels_last((11, 2, 1, 1), (3, 1, 1, 1))


def test_each_view_by_hand() -> None:
    def strides(op: str, shape: tuple[int, ...], out: tuple[int, ...], **attributes: int | tuple[int, ...]) -> object:
        graph = one_node(op, [shape], [out], **attributes)
        result = layouts(graph)["out0"]
        return result.strides if result.storage == "in0" else None

    assert strides("Squeeze", (4, 1, 6), (4, 6)) == (6, 1)
    assert strides("Unsqueeze", (4, 6), (4, 1, 6))[::2] == (6, 1)  # type: ignore[index]
    assert strides("Flatten", (2, 3, 4), (2, 12)) == (12, 1)
    assert strides("Reshape", (2, 6), (3, 4)) == (4, 1)
    assert strides("Reshape", (), (1, 1)) == (1, 1)
    assert strides("Reshape", (0, 4), (2, 0)) == (0, 1)
    assert strides("Transpose", (2, 3, 4), (4, 3, 2)) == (1, 4, 12)
    assert strides("Transpose", (2, 3, 4), (2, 4, 3), perm=(0, 2, 1)) == (12, 1, 4)
    assert strides("Expand", (1, 4), (3, 2, 4)) == (0, 0, 1)
    assert strides("Expand", (2, 4), (1, 2, 4)) == (0, 4, 1)
    assert strides("Expand", (2, 4), (2, 4)) == (4, 1)
    assert strides("Slice", (4, 6), (2, 3), axes=(0, 1), steps=(2, -2)) == (12, 2)
    assert strides("Slice", (4, 6), (2, 6), axes=(0,)) == (6, 1)
    assert strides("Select", (2, 3, 4), (2, 4), axis=1) == (12, 1)
    assert strides("Select", (2, 3, 4), (2, 3), axis=-1) == (12, 4)
    assert strides("Select", (2, 3, 4), (3, 4)) == (4, 1)
    assert strides("Contiguous", (2, 3), (2, 3)) == (3, 1)
    assert strides("Identity", (2, 3), (2, 3)) == (3, 1)
    assert strides("Unfold", (2, 8), (2, 2, 4)) == (8, 4, 1)
    assert strides("Relu", (2, 3), (2, 3)) is None


def test_an_in_place_operator_with_another_shape_owns_its_result() -> None:
    nodes = [Node("a", "Add", ("x", "z"), ("a",), {"inplace": 1}), Node("b", "Add", ("z", "x"), ("b",), {"inplace": 1})]
    result = layouts(chain(nodes, {"x": (4, 8), "z": (8,), "a": (4, 8), "b": (4, 8)}, ["x", "z"], ["a", "b"]))
    assert result["a"] == Layout("x", (8, 1))
    assert result["b"] == Layout("b", (8, 1))


def test_an_element_wise_result_lies_as_the_first_operand_of_its_shape() -> None:
    nodes = [
        Node("t", "Transpose", ("x",), ("t",), {"perm": (1, 0)}),
        Node("a", "Add", ("t", "z"), ("a",)),
        Node("b", "Add", ("z", "t"), ("b",)),
        Node("e", "Expand", ("o",), ("e",)),
        Node("c", "Add", ("e", "z"), ("c",)),
    ]
    shapes = {"x": (4, 6), "t": (6, 4), "z": (6, 4), "a": (6, 4), "b": (6, 4), "o": (6, 1), "e": (6, 4), "c": (6, 4)}
    result = layouts(chain(nodes, shapes, ["x", "z", "o"], ["a", "b", "c"]))
    assert result["a"].strides == (1, 6)
    assert result["b"].strides == (4, 1)
    assert result["c"].strides == (4, 1), "what is stretched has no order of its own"


def test_pictures_of_three_axes_and_volumes() -> None:
    volume = (2, 3, 4, 5, 6)
    assert channels_last(volume) == (360, 1, 90, 18, 3)
    assert is_channels_last(volume, channels_last(volume))
    assert not is_channels_last(volume, contiguous(volume))
    assert not is_channels_last((2, 3, 4), (12, 1, 3)), "a sequence has no such layout"
    assert not is_channels_last((2, 1, 4, 5), channels_last((2, 1, 4, 5))), "one channel lies both ways"
    assert not is_channels_last((2, 3, 4, 5), (60, 1, 3, 12)), "rows before columns"
    assert not is_channels_last((2, 3, 4, 5), (3, 1, 30, 6)), "pictures among each other"
    assert not is_channels_last((2, 3, 4, 5), (60, 0, 15, 3)), "channels that are all the same"
    assert is_channels_last((1, 3, 4, 5), (7, 1, 15, 3)), "one picture may lie anywhere"
    assert is_channels_last((2, 3, 1, 5), (15, 1, 99, 3))
    assert is_channels_last((2, 2, 2, 2), (8, 1, 4, 2))


@pytest.mark.parametrize(
    ("op", "out", "keeps"),
    [
        ("ConvTranspose", (2, 16, 8, 8), True), ("FusedConv", (2, 16, 8, 8), True), ("Resize", (2, 16, 16, 16), True),
        ("Pad", (2, 16, 10, 10), True), ("AveragePool", (2, 16, 4, 4), True), ("Tile", (2, 16, 8, 16), False),
        ("AdaptiveAveragePool", (2, 16, 2), False), ("Relu", (2, 16, 8, 8), True), ("Softmax", (2, 16, 8, 8), False),
    ],
)  # fmt: skip
def test_which_operators_write_as_they_read(op: str, out: tuple[int, ...], keeps: bool) -> None:
    result = _permuted_image(Node("n", op, ("image",), ("y",)), y=out)
    assert result["y"].storage == "y"
    assert result["y"].strides == (channels_last(out) if keeps else contiguous(out))


def test_only_fused_attention_of_four_axes_turns_its_result() -> None:
    assert layouts(one_node("Attention", [(3, 5, 4)] * 3, [(3, 5, 4)]))["out0"].strides == (20, 4, 1)
    mixed = one_node("Attention", [(2, 5, 12)] * 3, [(2, 3, 5, 4)])
    assert layouts(mixed)["out0"].strides == contiguous((2, 3, 5, 4))
    assert layouts(one_node("Range", [], [(5,)]))["out0"] == Layout("out0", (1,))
    absent = one_node("Concat", [None, (2, 3)], [(2, 3)])
    assert layouts(absent)["out0"] == Layout("out0", (3, 1))


def test_a_model_in_channels_last_has_its_images_and_convolutions_so() -> None:
    graph = in_channels_last(tiny_graph())
    found = layouts(graph)
    for name in ("x", "conv.weight", "conv", "relu"):
        assert found[name].strides == channels_last(graph.tensors[name].shape), name
    assert found["fc.weight"].strides == contiguous(graph.tensors["fc.weight"].shape)
    assert found["flat"].storage == "pool"  # one pixel: flattening it copies nothing
    assert graph.hash == tiny_graph().hash
    assert layouts(tiny_graph())["conv"].strides == contiguous(graph.tensors["conv"].shape)


def test_a_convolution_comes_back_to_channels_last_behind_a_row_major_norm() -> None:
    torch = pytest.importorskip("torch")
    from foretell.frontends.torch.export import graph_from_program
    from foretell.frontends.torch.program import TorchProgram

    with torch.device("meta"):
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3), torch.nn.GroupNorm(2, 8), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 1)
        )
        program = TorchProgram("net", model, (torch.empty(11, 3, 8, 8),), {})
        graph = in_channels_last(graph_from_program(program, batch_size=11))
    found = layouts(graph)
    last = [is_channels_last(graph.tensors[n.outputs[0]].shape, found[n.outputs[0]].strides) for n in graph.nodes]
    assert last == [True, False, False, True]
