import pytest
from onnx import TensorProto, helper

from foretell.profiling.fusion import onnx_runtime as fusion_onnxruntime
from foretell.profiling.workload import Workload


def node(op, inputs, outputs, name, **attributes):
    return helper.make_node(op, inputs, outputs, name=name, **attributes)


def graph(*nodes, folded=()):
    weights = [helper.make_tensor(name, TensorProto.FLOAT, [1], [1.0]) for name in folded]
    return helper.make_graph(list(nodes), "g", [], [], weights)


def blocks(compiled):
    """Which nodes share a kernel, by the kernels' names."""
    results = {}
    for name, homes in compiled.members.items():
        results.setdefault(compiled.kernels[homes[0]], set()).add(name)
    return results


SOURCE = graph(
    node("Conv", ["x", "w"], ["c"], "conv"),
    node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"], "norm"),
    node("Add", ["n", "x"], ["a"], "add"),
    node("Relu", ["a"], ["r"], "relu"),
    node("MaxPool", ["r"], ["p"], "pool"),
)


def test_surviving_names_show_which_nodes_a_fused_node_replaces():
    fused = node("FusedConv", ["x", "w", "b", "x"], ["r"], "conv_fused", domain="com.microsoft", activation="Relu")
    result = fusion_onnxruntime.match(SOURCE, graph(fused, node("MaxPool", ["r"], ["p"], "pool")))
    assert blocks(result) == {"com.microsoft.FusedConv+Relu": {"conv", "norm", "add", "relu"}, "MaxPool": {"pool"}}


def test_a_blocked_convolution_is_followed_to_the_sum_and_the_activation_it_took_over():
    domain = "com.microsoft.nchwc"
    result = fusion_onnxruntime.match(
        SOURCE,
        graph(
            node("ReorderInput", ["x"], ["t0"], "reorder", domain=domain),
            node("Conv", ["t0", "w2", "b2", "x"], ["t1"], "n_nchwc", domain=domain, activation="Relu"),
            node("MaxPool", ["t1"], ["t2"], "p_nchwc", domain=domain),
            node("ReorderOutput", ["t2"], ["p"], "back", domain=domain),
        ),
    )
    assert blocks(result) == {"nchwc.Conv+Relu": {"conv", "norm", "add", "relu"}, "nchwc.MaxPool": {"pool"}}


def test_reshapes_around_a_product_are_plumbing_and_a_moved_node_keeps_its_own_kernel():
    source = graph(
        node("MatMul", ["x", "w"], ["m"], "matmul"),
        node("Add", ["m", "b"], ["a"], "bias"),
        node("Transpose", ["a"], ["t"], "transpose"),
        node("Relu", ["t"], ["r"], "relu"),
    )
    result = fusion_onnxruntime.match(
        source,
        graph(
            node("Reshape", ["x", "s"], ["i"], "in"),
            node("Gemm", ["i", "w", "b"], ["o"], "matmul/MatMulAddFusion"),
            node("Reshape", ["o", "s2"], ["a"], "out"),
            node("Relu", ["a"], ["fresh"], "relu"),
            node("Transpose", ["fresh"], ["r"], "moved"),
        ),
    )
    homes = result.members
    assert result.kernels[homes["matmul"][0]] == "Gemm"
    assert homes["matmul"] == homes["bias"]
    assert homes["relu"] != homes["matmul"]


def test_what_was_folded_or_removed_has_no_kernel():
    source = graph(
        node("Mul", ["w", "k"], ["scaled"], "scale"),
        node("Identity", ["x"], ["same"], "identity"),
        node("MatMul", ["same", "scaled"], ["y"], "matmul"),
    )
    folded = graph(node("MatMul", ["x", "scaled"], ["y"], "matmul"), folded=["scaled"])
    assert "scale" not in fusion_onnxruntime.match(source, folded).members


def test_a_real_session_folds_the_norm_and_fuses_the_activation(tmp_path):
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    from foretell.profiling.zoos.registry import build

    spec = "synthetic:cnn?act=relu&channels=3-8-8&kernels=3-3&norm=batch&strides=1-1"
    proto = fusion_onnxruntime.export(build(spec), Workload(spec, 1, (3, 16, 16), "fp32"), tmp_path)
    result = fusion_onnxruntime.compile_file(tmp_path)
    convolutions = [node_proto.name for node_proto in proto.graph.node if node_proto.op_type == "Conv"]
    assert len(convolutions) == 2
    for name in convolutions:
        inside = {
            node_proto.op_type
            for node_proto in proto.graph.node
            if result.members.get(node_proto.name) == result.members[name]
        }
        assert inside == {"Conv", "BatchNormalization", "Relu"}
    assert {node_proto.name for node_proto in proto.graph.node if node_proto.op_type != "Constant"} == set(
        result.members
    )
