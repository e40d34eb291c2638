from collections import namedtuple
from types import SimpleNamespace

import pytest
import torch

from foretell.profiling.replays.calls import Call, recorded_calls, tie, to_columns
from foretell.profiling.replays.compiled_worker import compile_model
from foretell.training.compiled_calls import module_of

Access = namedtuple("Access", "name")


def library(name):
    return Call(library=True, name=name)


def generated(name):
    return Call(library=False, name=name)


CALLS = [
    generated("triton_a"), library("convolution"), generated("triton_b"), library("aten.mm"),
    library("aten.mm.default"), generated("triton_b"), library("aten.addmm"),
]  # fmt: skip
NAMES = ["triton_a", "transpose", "conv", "triton_b", "gemm", "gemm", "split_k", "triton_b", "gemm", "reduce"]
OPERATORS = ["", "aten::convolution", "aten::convolution", "", *("aten::mm",) * 3, "", "aten::addmm", "aten::addmm"]
NUMBERS = [0, 1, 1, 2, 3, 4, 4, 5, 6, 6]


def test_kernels_belong_to_the_calls_that_launched_them():
    assert tie(CALLS, NAMES, OPERATORS, NUMBERS) == [0, 1, 1, 2, 3, 4, 4, 5, 6, 6]


def test_a_call_that_launched_nothing_has_no_kernels():
    calls = [*CALLS[:3], generated("triton_unused"), library("aten.empty"), *CALLS[3:]]
    assert tie(calls, NAMES, OPERATORS, NUMBERS) == [0, 1, 1, 2, 5, 6, 6, 7, 8, 8]


def test_an_operator_that_the_trace_names_otherwise_belongs_to_the_only_call_between():
    operators = [name.replace("convolution", "cudnn_convolution") for name in OPERATORS]
    assert tie(CALLS, NAMES, operators, NUMBERS) == [0, 1, 1, 2, 3, 4, 4, 5, 6, 6]


def test_what_cannot_be_told_apart_stays_unknown():
    calls = [library("one"), library("two")]
    assert tie(calls, ["gemm", "conv"], ["aten::three", "aten::four"], [0, 1]) == [-1, -1]
    assert tie([], ["gemm"], ["aten::mm"], [0]) == [-1]


def test_columns_have_the_number_and_the_time_of_kernels():
    columns = to_columns(CALLS, [0, 1, 1, 2, -1, 4, 4, 5, 6, 6], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0])
    assert columns["kernels"] == [1, 2, 1, 0, 2, 1, 2]
    assert columns["duration_us"] == [1.0, 5.0, 4.0, 0.0, 13.0, 8.0, 19.0]
    assert columns["first_kernel"] == [0, 1, 3, -1, 5, 7, 8]
    assert columns["library"] == [False, True, False, True, True, False, True]
    assert columns["nodes"][0] == "[]"


class Buffer:
    def __init__(self, *shape, strides=None):
        self.shape = shape
        self.strides = strides or torch.empty(shape).stride()

    def get_dtype(self):
        return torch.float16

    def get_size(self):
        return list(self.shape)

    def get_stride(self):
        return list(self.strides)


def scheduled(reads, writes, users, **node):
    """A part of a kernel as the scheduler has it; ``users`` are the readers of what it writes, besides itself."""
    part = SimpleNamespace(
        read_writes=SimpleNamespace(reads=[Access(name) for name in reads], writes=[Access(name) for name in writes]),
        node=SimpleNamespace(origins=(), **node),
    )
    buffers = {name: SimpleNamespace(users=[SimpleNamespace(node=user) for user in users or [part]]) for name in writes}
    part.scheduler = SimpleNamespace(name_to_buf=buffers, nodes=[])
    return part


@pytest.fixture
def inductor(monkeypatch):
    """The places where Inductor writes calls, doing nothing, and the tensors it knows."""
    from torch._inductor import scheduler, virtualized
    from torch._inductor.codegen import triton

    monkeypatch.setattr(scheduler.Scheduler, "codegen_extern_call", lambda _self, node: f"called {node.node.name}")
    monkeypatch.setattr(triton.TritonScheduling, "define_kernel", lambda _self, _source, _nodes, _kernel: "triton_0")
    tensors = {"image": Buffer(2, 3, 8, 8), "made": Buffer(2, 4, 8, 8, strides=(256, 1, 32, 4)), "scale": Buffer(4)}
    with virtualized.V.set_graph_handler(SimpleNamespace(get_buffer=lambda name: tensors[name])):
        yield SimpleNamespace(scheduler=scheduler.Scheduler, backend=triton.TritonScheduling)


def test_library_calls_are_recorded_with_their_tensors(inductor):
    part = scheduled(
        ["image"], ["made"], ["reader"], name="conv", python_kernel_name="extern_kernels.convolution",
        kwargs={"stride": (2, 2)},
    )  # fmt: skip
    result = scheduled(["made"], [], ["reader"], name="output")
    result.node = type("MultiOutput", (), {"name": "output"})()
    with recorded_calls() as calls:
        assert inductor.scheduler.codegen_extern_call(None, part) == "called conv"
        assert inductor.scheduler.codegen_extern_call(None, result) == "called output"
    assert [call.name for call in calls] == ["convolution"]
    assert [call.library for call in calls] == [True]
    assert calls[0].reads == ["float16 2x3x8x8 192x64x8x1"]
    assert calls[0].writes == ["float16 2x4x8x8 256x1x32x4"]
    assert (calls[0].read_bytes, calls[0].written_bytes) == (2 * 2 * 192, 2 * 2 * 256)
    assert '"stride": [2, 2]' in calls[0].arguments


def test_generated_kernels_are_recorded_with_their_loops(inductor):
    first = scheduled(["image", "unknown"], ["scale"], None)
    second = scheduled(["scale"], ["made"], ["reader"])
    first.scheduler.name_to_buf |= second.scheduler.name_to_buf
    second.scheduler = first.scheduler
    kernel = SimpleNamespace(numels={"y": 8, "x": 16, "r0_": 64})
    with recorded_calls() as calls:
        source = "tl.load(a) tl.load(b) tl.store(c)"
        assert inductor.backend.define_kernel(None, source, [first, "end", second], kernel) == "triton_0"
    (call,) = calls
    assert (call.library, call.name, call.sizes, call.reduced, call.loads, call.stores) == (
        False, "triton_0", [8, 16], 64, 2, 1,
    )  # fmt: skip
    # what only the kernel itself reads is not written, and a tensor without a size is left out
    assert (call.reads, call.writes) == (["float16 2x3x8x8 192x64x8x1"], ["float16 2x4x8x8 256x1x32x4"])


def test_nothing_is_recorded_outside(inductor):
    with pytest.raises(KeyError), recorded_calls() as calls:
        raise KeyError
    part = scheduled(["image"], ["made"], ["reader"], name="conv")
    assert inductor.scheduler.codegen_extern_call(None, part) == "called conv"
    assert calls == []


def test_what_a_version_of_torch_does_not_show_is_left_out(inductor):
    with recorded_calls() as calls:
        inductor.scheduler.codegen_extern_call(None, SimpleNamespace(node=SimpleNamespace(name="odd", op_overload="o")))
    assert [(call.name, call.reads, call.nodes) for call in calls] == [("o", [], [])]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch, about its own deprecated parts
def test_calls_of_a_compiled_model(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2)).eval()
    with torch.no_grad(), recorded_calls() as calls:
        compile_model(model)(torch.ones(3, 4))
    assert [call.library for call in calls] == [True, False, True]
    assert [module_of(call.modules[0]) for call in calls if call.library] == ["0", "2"]
    assert "aten.gelu.default" in calls[1].operators
    assert calls[1].writes == ["float32 3x8 8x1"]
