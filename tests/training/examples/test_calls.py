import pytest

from foretell.graph import Graph, Node, Tensor
from foretell.graph.ir.alignment import NONE
from foretell.training.examples.calls import BACKWARD, LOSS, OPTIMIZER, Call, link_calls


def _graph(*steps):
    """A chain of nodes (name, operator, module)."""
    tensors = {"x0": Tensor("x0", (1, 8), "fp32", "input", 0)}
    nodes = []
    for position, (name, op, module) in enumerate(steps):
        tensors[f"x{position + 1}"] = Tensor(f"x{position + 1}", (1, 8), "fp32", "activation", 0)
        nodes.append(Node(name, op, (f"x{position}",), (f"x{position + 1}",), module=module))
    return Graph.build("chain", nodes, tensors, ["x0"], [f"x{len(steps)}"])


BLOCKS = _graph(
    ("conv2d", "Conv", "a.conv"),
    ("batch_norm", "BatchNormalization", "a.norm"),
    ("relu_", "Relu", "a"),
    ("conv2d_1", "Conv", "b.conv"),
    ("batch_norm_1", "BatchNormalization", "b.norm"),
    ("flatten", "Reshape", ""),
    ("linear", "Gemm", "fc"),
)


def _linked(graph, *calls):
    return link_calls(graph, [Call(number, *call) for number, call in enumerate(calls)])


def test_calls_find_their_nodes_by_name_module_and_order():
    result = _linked(
        BLOCKS,
        ("aten::conv2d", "a.conv"),
        ("aten::batch_norm", "a.norm"),
        ("aten::relu_", "a"),
        ("aten::conv2d", "b.conv"),
        ("aten::batch_norm", "b.norm"),
        ("aten::linear", "fc"),
    )
    assert result == [0, 1, 2, 3, 4, 6]


def test_a_missing_call_does_not_shift_the_others():
    assert _linked(BLOCKS, ("aten::conv2d", "b.conv"), ("aten::linear", "fc")) == [3, 6]


def test_a_call_that_the_graph_does_not_have_is_not_tied():
    assert _linked(BLOCKS, ("aten::conv2d", "a.conv"), ("aten::topk", "a"), ("aten::linear", "fc")) == [0, NONE, 6]


def test_other_spellings_of_one_operator_meet():
    graph = _graph(("scaled_dot_product_attention", "Attention", "attn"), ("mul", "Mul", "rotary"))
    assert _linked(graph, ("aten::_native_multi_head_attention", "attn"), ("aten::matmul", "rotary")) == [0, 1]
    assert _linked(_graph(("_weight_norm", "_weight_norm", "")), (BACKWARD + "WeightNormInterfaceBackward0", "")) == [0]


@pytest.mark.parametrize(
    ("op", "name"),
    [
        ("AddmmBackward0", "addmm"),
        ("MaxPool2DWithIndicesBackward0", "max_pool2d_with_indices"),
        ("UpsampleBilinear2DBackward0", "upsample_bilinear2d"),
        ("MeanBackward1", "mean"),
        ("torch::autograd::AccumulateGrad", "accumulate_grad"),
        ("ScaledDotProductEfficientAttentionBackward0", "scaled_dot_product_efficient_attention"),
    ],
)
def test_a_recorded_function_names_the_operator_whose_gradient_it_is(op, name):
    assert Call(0, BACKWARD + op).name == name


def test_gradients_are_tied_from_the_last_node_to_the_first():
    result = _linked(
        BLOCKS,
        ("aten::conv2d", "a.conv"),
        ("aten::conv2d", "b.conv"),
        ("aten::linear", "fc"),
        ("aten::cross_entropy_loss", ""),
        ("aten::ones_like", ""),
        (BACKWARD + "NllLossBackward0", ""),
        (BACKWARD + "LogSoftmaxBackward0", ""),
        (BACKWARD + "AddmmBackward0", ""),
        (BACKWARD + "torch::autograd::AccumulateGrad", ""),
        (BACKWARD + "CudnnBatchNormBackward0", ""),
        (BACKWARD + "ConvolutionBackward0", ""),
        (BACKWARD + "ReluBackward0", ""),
        (BACKWARD + "ConvolutionBackward0", ""),
        (BACKWARD + "ToCopyBackward0", ""),
        ("aten::_foreach_add_", ""),
        ("aten::add_", ""),
    )
    assert result == [0, 3, 6, LOSS, LOSS, LOSS, LOSS, 6, 6, 4, 3, 2, 0, 0, OPTIMIZER, OPTIMIZER]


def test_what_only_moves_gradients_does_not_outvote_what_computes_them():
    graph = _graph(("linear", "Gemm", "q"), ("view", "Reshape", ""), ("transpose", "Transpose", ""), ("to", "Cast", ""))
    moves = [
        (BACKWARD + "ToCopyBackward0", ""),
        (BACKWARD + "ViewBackward0", ""),
        (BACKWARD + "TransposeBackward0", ""),
    ]
    result = _linked(graph, (BACKWARD + "AddmmBackward0", ""), *moves)
    assert result[0] == 0
    assert NONE not in result


def test_a_trace_and_a_graph_of_different_models_are_not_forced_together():
    result = _linked(BLOCKS, ("aten::lstm", "rnn"), ("aten::embedding", "table"), ("aten::rms_norm", "norm"))
    assert result == [NONE, NONE, NONE]


def test_no_calls_and_no_nodes():
    assert link_calls(BLOCKS, []) == []
    empty = Graph.build("empty", [], {"x": Tensor("x", (1,), "fp32", "input", 0)}, ["x"], ["x"])
    assert link_calls(empty, [Call(0, "aten::relu")]) == [NONE]
