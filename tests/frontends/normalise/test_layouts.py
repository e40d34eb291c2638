"""Channels last become channels first, and the transposes between go."""

from converted_models import counts, read
from foretell.graph import graph_costs

LAST, FIRST = "Transpose<perm=[0,2,3,1]>", "Transpose<perm=[0,3,1,2]>"
WEIGHTS = {"w": "float[3,3,1,1]", "v": "float[3,3,1,1]"}


def network(body: str, result: str = "float[N,8,8,3]") -> str:
    """Two convolutions with channels last around them; ``body`` makes b of a."""
    return f"""
    (float[N,8,8,3] x) => ({result} y) {{
      t = {FIRST}(x)
      c = Conv(t, w)
      a = {LAST}(c)
      {body}
    }}
    """


def second(body: str) -> str:
    return network(f"{body}\n u = {FIRST}(b)\n d = Conv(u, v)\n y = {LAST}(d)")


def test_transposes_around_elementwise_operators_cancel() -> None:
    graph = read(second("r = Relu(a)\n b = Add(r, x)"), WEIGHTS)
    assert counts(graph) == {"Add": 1, "Conv": 2, "Relu": 1, "Transpose": 1}  # that of the result
    assert graph.tensors["x"].shape == (11, 3, 8, 8)
    assert graph.nodes[-1].op == "Transpose"


def test_a_vector_is_turned_with_its_channels() -> None:
    graph = read(second("b = Mul(a, s)"), WEIGHTS | {"s": "float[3]"})
    product = next(n for n in graph.nodes if n.op == "Mul")
    assert [graph.tensors[i].shape for i in product.inputs] == [(11, 3, 8, 8), (3, 1, 1)]


def test_axes_are_turned_as_well() -> None:
    graph = read(second("e = Concat<axis=3>(a, a)\n f = Softmax<axis=-1>(e)\n three = Constant<value_ints=[0]>()\n"
                        " end = Constant<value_ints=[3]>()\n ax = Constant<value_ints=[3]>()\n"
                        " b = Slice(f, three, end, ax)"), WEIGHTS)  # fmt: skip
    joined = next(n for n in graph.nodes if n.op == "Concat")
    assert joined.attributes["axis"] == 1
    assert graph.tensors[joined.outputs[0]].shape == (11, 6, 8, 8)
    assert next(n for n in graph.nodes if n.op == "Softmax").attributes["axis"] == 1


def test_padding_is_turned() -> None:
    graph = read(
        second("p = Constant<value_ints=[0,1,2,0,0,3,4,0]>()\n b = Pad(a, p)").replace("8,8,3] y", "h,w,3] y"), WEIGHTS
    )
    pad = next(n for n in graph.nodes if n.op == "Pad")
    assert pad.attributes["pads"] == (0, 0, 1, 2, 0, 0, 3, 4)
    assert graph.tensors[pad.outputs[0]].shape == (11, 3, 12, 14)


def test_the_mean_over_space_needs_no_transpose() -> None:
    body = "axes = Constant<value_ints=[1,2]>()\n y = ReduceMean<keepdims={}>(a, axes)"
    graph = read(network(body.format(0), "float[N,3]"), WEIGHTS)
    assert [n.op for n in graph.nodes] == ["Conv", "ReduceMean"]
    assert graph.nodes[1].attributes["axes"] == (2, 3)
    result = read(network(body.format(1), "float[N,1,1,3]"), WEIGHTS)
    assert [n.op for n in result.nodes] == ["Conv", "ReduceMean", "Transpose"]
    assert result.tensors["y"].shape == (11, 1, 1, 3)


def test_flattening_leaves_no_copy() -> None:
    graph = read(network("s = Constant<value_ints=[-1,192]>()\n y = Reshape(a, s)", "float[N,192]"), WEIGHTS)
    assert [n.op for n in graph.nodes] == ["Conv", "Reshape"]
    assert graph_costs(graph).nodes[1].bytes == 0


def test_patches_are_views_of_the_convolution() -> None:
    graph = read(network("s = Constant<value_ints=[-1,64,3]>()\n y = Reshape(a, s)", "float[N,64,3]"), WEIGHTS)
    assert [n.op for n in graph.nodes] == ["Conv", "Transpose", "Reshape"]
    assert graph_costs(graph).total.bytes == graph_costs(graph).nodes[0].bytes


def test_an_input_that_no_convolution_reads_turned_stays() -> None:
    text = "(float[N,8,8,3] x) => (float[N,8,8,3] y) { y = Relu(x)\n }"
    assert read(text, {}).tensors["x"].shape == (11, 8, 8, 3)


def test_a_result_keeps_its_shape() -> None:
    graph = read(second("b = Relu(a)"), WEIGHTS)
    assert graph.tensors["y"].shape == (11, 8, 8, 3)
    assert graph.with_batch(2).tensors["y"].shape == (2, 8, 8, 3)
