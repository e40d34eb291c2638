import json

import pytest

from foretell.graph.ir.serde import MAGIC, to_bytes
from foretell.profiling.fusion.kernels import Compiled
from foretell.profiling.workload import Workload
from foretell.testing import tiny_graph
from foretell.workflows.measure import fusion_worker

torch = pytest.importorskip("torch")

MLP = Workload("synthetic:mlp?act=relu&widths=16-32-8", 2, (16,), "fp32")
CONVOLUTION = Compiled(("conv",), {"conv": (0,), "relu": (0,)})


def _with(monkeypatch, compiler):
    monkeypatch.setitem(fusion_worker.COMPILERS, "inductor", compiler)
    return fusion_worker.answer("inductor", MLP, "cpu", 1e5)


def test_an_answer_has_the_row_the_labels_and_the_graph(monkeypatch):
    graph = tiny_graph()
    reply = _with(monkeypatch, lambda *_: (graph, CONVOLUTION, 0.25))
    assert reply.status == "ok"
    values = {key: reply.values[key] for key in ("nodes", "groups", "edges", "fused_edges", "compile_s")}
    assert values == {"nodes": 5, "groups": 1, "edges": 4, "fused_edges": 1, "compile_s": 0.25}
    details = json.loads(json.dumps(reply.details))
    assert details["nodes"]["group"] == [0, 0, -1, -1, -1]
    assert details["nodes"]["op_type"][0] == "Conv"
    assert details["edges"]["fused"] == [True, False, False, False]
    assert details["parameters"] == graph.parameter_count
    assert details["graph"]["name"] == "tiny"
    assert to_bytes(graph).startswith(MAGIC)


def test_whatever_goes_wrong_becomes_a_status(monkeypatch):
    def fail(error):
        def compiler(*_):
            raise error

        return compiler

    assert _with(monkeypatch, fail(RuntimeError("bad\n  kernel"))).values["error"] == "RuntimeError: bad kernel"
    assert _with(monkeypatch, fail(RuntimeError("x"))).status == "run_error"
    advice = RuntimeError("pages of advice")
    advice.__cause__ = ValueError("the reason")
    assert _with(monkeypatch, fail(advice)).values["error"] == "ValueError: the reason"
    assert _with(monkeypatch, fail(MemoryError())).status == "oom"
    nothing = _with(monkeypatch, lambda *_: (tiny_graph(), Compiled((), {}), 0.1))
    assert nothing.status == "run_error"


def test_a_model_beyond_the_limit_is_skipped_and_one_that_cannot_be_built_is_named():
    assert fusion_worker.answer("inductor", MLP, "cpu", 100).status == "skipped"
    unknown = fusion_worker.answer("inductor", Workload("synthetic:nothing", 1, (3,), "fp32"), "cpu", 1e5)
    assert unknown.status == "build_error"
    assert unknown.values["error"].startswith("build: ")


def test_onnx_runtime_labels_the_nodes_of_the_exported_graph():
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    reply = fusion_worker.answer("onnxruntime", MLP, "cpu", 1e5)
    assert reply.status == "ok", reply.values
    assert reply.details is not None
    kernels = dict(zip(reply.details["nodes"]["name"], reply.details["nodes"]["kernel"]))
    assert len(kernels) == reply.values["nodes"] >= 3
    assert all(kernels.values())
    assert "onnxruntime" in reply.values["backend_version"]


def test_inductor_labels_the_nodes_of_the_exported_graph():
    reply = fusion_worker.answer("inductor", MLP, "cpu", 1e5)
    assert reply.status == "ok", reply.values
    assert reply.details is not None
    kernels = dict(zip(reply.details["nodes"]["op_type"], reply.details["nodes"]["kernel"]))
    assert kernels["Gemm"].startswith("extern:")
    assert kernels["Relu"] == "pointwise"
