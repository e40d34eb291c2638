import pytest

from foretell.profiling.trackers.kernels import parse_trace


def _span(cat, name, ts, dur, **args):
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": 1, "args": args}


def _kernel(name, ts, dur, correlation):
    return _span(
        "kernel", name, ts, dur, correlation=correlation, grid=[8, 2, 1], block=[128, 1, 1],
        **{"registers per thread": 40, "shared memory": 512, "est. achieved occupancy %": 37},
    ) | {"tid": 7}  # fmt: skip


TRACE = {
    "traceEvents": [
        {"ph": "M", "name": "process_name"},
        _span("user_annotation", "run:0", 0, 100),
        _span("user_annotation", "module:", 1, 98),
        _span("user_annotation", "module:conv", 2, 40),
        _span("cpu_op", "aten::conv2d", 3, 38),
        _span("cpu_op", "aten::cudnn_convolution", 4, 30),
        _span("cuda_runtime", "cudaLaunchKernel", 10, 2, correlation=11),
        _span("cuda_driver", "cuLaunchKernelEx", 20, 2, correlation=12),
        _span("cpu_op", "aten::view", 50, 2),
        _span("cpu_op", "aten::relu", 60, 10),
        _span("cuda_runtime", "cudaLaunchKernel", 62, 2, correlation=13),
        _span("user_annotation", "run:1", 100, 50),
        _span("cpu_op", "aten::relu", 110, 10),
        _span("cuda_runtime", "cudaLaunchKernel", 112, 2, correlation=14),
        _span("cpu_op", "autograd::ReluBackward0", 130, 10) | {"tid": 2},
        _span("cuda_runtime", "cudaLaunchKernel", 132, 2, correlation=15) | {"tid": 2},
        _kernel("relu_backward", 305, 6.0, 15),
        _kernel("relu", 230, 4.0, 13),
        _kernel("nchwToNhwc", 200, 1.5, 11),
        _kernel("sm90_gemm", 210, 20.25, 12),
        _kernel("relu", 300, 5.0, 14),
        _kernel("stray", 310, 1.0, 99),
    ]
}


def test_kernels_know_their_operator_module_and_run():
    first, second = parse_trace(TRACE, runs=2)
    assert first.name[:3] == ["nchwToNhwc", "sm90_gemm", "relu"]
    assert first.op[:3] == ["aten::conv2d", "aten::conv2d", "aten::relu"]
    assert first.leaf_op[:2] == ["aten::cudnn_convolution"] * 2
    assert first.module[:3] == ["conv", "conv", ""]
    assert first.op_index[:3] == [0, 0, 2]  # the view between them launches nothing and is counted
    assert first.grid[0] == [8, 2, 1]
    assert (first.registers[0], first.shared_bytes[0], first.occupancy_pct[0]) == (40, 512, 37.0)
    assert second.name == ["relu", "relu_backward"]  # gradients come from another thread, in the same run
    assert second.op_index == [0, 1]
    assert second.total_ms() == pytest.approx(0.011)


def test_what_ran_behind_another_kernel_is_hidden_and_counts_once():
    launches = [_span("cuda_runtime", "cudaLaunchKernel", 10 + number, 1, correlation=number) for number in range(4)]
    streams = [
        _kernel("a", 100, 10.0, 0),
        _kernel("b", 104, 10.0, 1),
        _kernel("c", 105, 3.0, 2),
        _kernel("d", 120, 5.0, 3),
    ]
    (table,) = parse_trace({"traceEvents": [_span("cpu_op", "aten::conv2d", 0, 50), *launches, *streams]})
    assert table.hidden_us == [0.0, 6.0, 3.0, 0.0]
    assert table.total_ms() == pytest.approx(0.019)


def test_a_kernel_without_a_known_launch_is_kept_and_says_so():
    first, _ = parse_trace(TRACE, runs=2)
    assert first.name[-1] == "stray"
    assert (first.op[-1], first.op_index[-1]) == ("", -1)


def test_a_real_trace_on_the_host():
    torch = pytest.importorskip("torch")
    from contextlib import nullcontext

    from foretell.profiling.trackers.kernels import trace_kernels

    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
    x = torch.randn(2, 4)
    (table,) = trace_kernels(lambda: model(x), model, 1, cuda=False, alone=nullcontext)
    assert table.op[table.module.index("0")] == "aten::linear"
    assert table.op[table.module.index("1")] == "aten::relu"
    assert len({len(column) for column in table.to_json().values()}) == 1


def test_without_a_model_no_hook_is_set():
    torch = pytest.importorskip("torch")
    from contextlib import nullcontext

    from torch.nn.modules.module import _has_any_global_hook

    from foretell.profiling.trackers.kernels import trace_kernels

    x, hooked = torch.randn(2, 4), []

    def run():
        hooked.append(bool(_has_any_global_hook()))
        torch.relu(x)

    (table,) = trace_kernels(run, None, 1, cuda=False, alone=nullcontext)
    assert "aten::relu" in table.op
    assert set(table.module) == {""}
    assert hooked == [False]


def test_kernels_belong_to_the_operators_that_a_composed_one_calls():
    spans = [
        _span("cpu_op", "aten::einsum", 0, 40),
        _span("cpu_op", "aten::bmm", 5, 10),
        _span("cuda_runtime", "cudaLaunchKernel", 6, 1, correlation=1),
        _span("cuda_runtime", "cudaLaunchKernel", 20, 1, correlation=2),
        _span("cpu_op", "aten::bmm", 25, 10),
        _span("cuda_runtime", "cudaLaunchKernel", 26, 1, correlation=3),
    ]
    kernels = [_kernel(f"kernel{number}", 100 + 10 * number, 5.0, number) for number in (1, 2, 3)]
    (table,) = parse_trace({"traceEvents": [*spans, *kernels]})
    assert table.op == ["aten::bmm", "aten::einsum", "aten::bmm"]
    assert table.op_index == [1, 0, 2]
    (on_cpu,) = parse_trace({"traceEvents": spans})
    assert on_cpu.name == ["aten::bmm", "aten::bmm"]  # nothing counts twice


def test_kernels_of_a_compiled_model_belong_to_the_operators_inside_its_region():
    spans = [
        _span("cpu_op", "Torch-Compiled Region: 0/0", 0, 40),
        _span("cpu_op", "## Call CompiledFxGraph abc ##", 1, 38),
        _span("cpu_op", "aten::convolution", 5, 10),
        _span("cpu_op", "aten::cudnn_convolution", 6, 8),
        _span("cuda_runtime", "cudaLaunchKernel", 7, 1, correlation=1),
        _span("cpu_op", "aten::mm", 25, 10),
        _span("cuda_runtime", "cudaLaunchKernel", 26, 1, correlation=2),
    ]
    kernels = [_kernel(f"kernel{number}", 100 + 10 * number, 5.0, number) for number in (1, 2)]
    (table,) = parse_trace({"traceEvents": [*spans, *kernels]})
    assert table.op == ["aten::convolution", "aten::mm"]
    assert len(set(table.op_index)) == 2
    (on_cpu,) = parse_trace({"traceEvents": spans})
    assert on_cpu.name == ["aten::convolution", "aten::mm"]
