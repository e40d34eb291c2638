"""What a lazy compiler writes out, on streams whose kernels Inductor was seen to make."""

from itertools import pairwise

import pytest

from foretell.graph import Graph
from foretell.graph.ir.node import Node
from foretell.graph.ir.tensor import Tensor
from foretell.predictors.fusion.edges import edges_of
from foretell.predictors.fusion.lazy_compiler import lower


def lowered(nodes, parameters=(), outputs=("y",), dtype="fp32"):
    """Nodes that all make tensors of one shape; what nobody makes is a weight if in ``parameters``, else an input."""
    made = {name for node in nodes for name in node.outputs}
    read = {name for node in nodes for name in node.inputs}
    tensors = {name: Tensor(name, (8, 8), dtype) for name in made}
    tensors |= {name: Tensor(name, (8, 8), dtype, kind="parameter") for name in parameters}
    inputs = sorted(read - made - set(parameters))
    tensors |= {name: Tensor(name, (8, 8), dtype, kind="input") for name in inputs}
    graph = Graph.build("g", nodes, tensors, inputs, list(outputs))
    makers = [[] for _ in nodes]
    readers = [[] for _ in nodes]
    for source, target in edges_of(graph):
        makers[target].append(source)
        readers[source].append(target)
    return lower(graph, makers, readers)


def transformer(blocks, dtype):
    """x + Gemm(LayerNormalization(x)), again and again; the first x is computed."""
    nodes, stream = [Node("first", "Relu", ("x",), ("s0",))], "s0"
    for number in range(blocks):
        after = f"s{number + 1}" if number + 1 < blocks else "y"
        nodes += [
            Node(f"norm{number}", "LayerNormalization", (stream, "scale", "shift"), (f"n{number}",)),
            Node(f"gemm{number}", "Gemm", (f"n{number}", "weight", "bias"), (f"g{number}",)),
            Node(f"add{number}", "Add", (stream, f"g{number}"), (after,)),
        ]
        stream = after
    return lowered(nodes, ("scale", "shift", "weight", "bias"), dtype=dtype)


@pytest.mark.parametrize(("dtype", "expected"), [("fp16", "1110111"), ("fp32", "1010101")])
def test_a_residual_stream_is_computed_again_until_it_reads_more_than_four_buffers(dtype, expected):
    """In single precision a bias is read beside its product, and the stream is full after half as many blocks."""
    expressions = transformer(8, dtype)
    adds = [3 * number + 3 for number in range(8)]
    assert "".join(str(int(pair in expressions.inlined)) for pair in pairwise(adds)) == expected


def test_a_product_has_its_operand_written_out_and_a_view_stands_for_what_it_shows():
    nodes = [
        Node("relu", "Relu", ("x",), ("a",)),
        Node("turn", "Transpose", ("a",), ("t",), {"perm": (1, 0)}),
        Node("gemm", "Gemm", ("t", "weight"), ("g",)),
        Node("neg", "Neg", ("g",), ("y",)),
    ]
    expressions = lowered(nodes, ("weight",))
    assert expressions.written == [True, True, True, True]
    assert expressions.inlined == {(0, 1)}  # when the view was met, nothing was written yet


def test_the_bias_of_a_convolution_is_pointwise_work():
    nodes = [Node("conv", "Conv", ("x", "weight", "bias"), ("c",)), Node("relu", "Relu", ("c",), ("y",))]
    with_bias = lowered(nodes, ("weight", "bias"), dtype="fp16")
    assert (0, 1) in with_bias.inlined
    assert with_bias.reads == [2, 2]
    bare = lowered([Node("conv", "Conv", ("x", "weight"), ("c",)), nodes[1]], ("weight",), dtype="fp16")
    assert not bare.inlined


def test_reductions_and_what_is_returned_are_written_out():
    nodes = [
        Node("exp", "Exp", ("x",), ("e",)),
        Node("sum", "ReduceSum", ("e",), ("s",)),
        Node("div", "Div", ("e", "s"), ("y",)),
    ]
    expressions = lowered(nodes)
    assert expressions.written == [False, True, True]
    assert expressions.inlined == {(0, 1), (0, 2)}


def test_an_expression_of_many_buffers_is_written_out_though_it_is_read_once():
    names = [f"x{number}" for number in range(10)]
    nodes = [Node("first", "Add", (names[0], names[1]), ("s1",))]
    nodes += [Node(f"add{n}", "Add", (f"s{n - 1}", names[n]), (f"s{n}",)) for n in range(2, 10)]
    expressions = lowered([*nodes, Node("last", "Neg", ("s9",), ("y",))])
    assert expressions.reads == [2, 3, 4, 5, 6, 7, 8, 9, 2, 2]
    assert expressions.written == [*[False] * 7, True, False, True]
