"""What PyTorch's exporters write costs what the module itself costs."""

import contextlib
import io
from pathlib import Path
from typing import Any

import onnx
import pytest

from foretell.graph import graph_costs
from foretell.optional import available
from foretell.workflows.workload import load_graph

torch = pytest.importorskip("torch")
pytestmark = [
    # not imported here: every process would, to collect the tests
    pytest.mark.skipif(not available("onnxscript"), reason="onnxscript writes the files"),
    pytest.mark.filterwarnings("ignore::Warning"),  # the exporters warn about themselves
]


def network() -> Any:
    nn = torch.nn

    class Network(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 16, 3, 2, 1)
            self.depth = nn.Conv2d(16, 16, 3, 1, 1, groups=16, bias=False)
            self.token = nn.Parameter(torch.rand(1, 1, 16))
            self.norm = nn.LayerNorm(16)
            self.attend = nn.MultiheadAttention(16, 2, batch_first=True)
            self.head = nn.Linear(16, 10)

        def forward(self, x: Any) -> Any:
            x = torch.relu(self.depth(self.stem(x)))
            x = torch.cat([self.token.expand(x.shape[0], -1, -1), x.flatten(2).transpose(1, 2)], 1)
            x = x + self.attend(self.norm(x), self.norm(x), self.norm(x), need_weights=False)[0]
            return self.head(nn.functional.gelu(x[:, 0]))

    torch.manual_seed(0)
    made = Network().eval()
    for parameter in made.parameters():  # exporters share weights of equal values, and fresh biases are all zero
        torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return made


def by_script(net: Any, opset: int) -> onnx.ModelProto:
    content = io.BytesIO()
    arguments = {"dynamo": False, "opset_version": opset, "input_names": ["x"], "dynamic_axes": {"x": {0: "batch"}}}
    with contextlib.redirect_stdout(io.StringIO()):
        torch.onnx.export(net, (torch.rand(2, 3, 16, 16),), content, **arguments)
    return onnx.load_from_string(content.getvalue())


def by_dynamo(net: Any, optimize: bool) -> onnx.ModelProto:
    shapes = ({0: torch.export.Dim.DYNAMIC},)
    with contextlib.redirect_stdout(io.StringIO()):
        program = torch.onnx.export(
            net, (torch.rand(2, 3, 16, 16),), dynamo=True, verbose=False, optimize=optimize, dynamic_shapes=shapes
        )
    return program.model_proto


SLOW = [pytest.param(how, marks=pytest.mark.slow) for how in ("script-14", "dynamo-optimised")]


@pytest.mark.parametrize("how", ["script-17", "dynamo", *SLOW])
def test_parameters_and_macs_are_those_of_the_module(how: str) -> None:
    net = network()
    proto = by_script(net, int(how[-2:])) if how.startswith("script") else by_dynamo(net, how.endswith("optimised"))
    for batch_size in (1, 4):
        direct = load_graph(net, input_shape="3x16x16", batch_size=batch_size)
        graph = load_graph(proto, batch_size=batch_size)
        assert graph.parameter_count == direct.parameter_count == sum(p.numel() for p in net.parameters())
        assert graph_costs(graph).total.macs == graph_costs(direct).total.macs
        assert graph_costs(graph).coverage == 1.0


@pytest.mark.parametrize("level", ["ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"])
def test_optimised_by_onnx_runtime(tmp_path: Path, level: str) -> None:
    ort = pytest.importorskip("onnxruntime")
    net = network()
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 4
    ort.InferenceSession(by_script(net, 17).SerializeToString(), options, providers=["CPUExecutionProvider"])
    direct = load_graph(net, input_shape="3x16x16", batch_size=3)
    graph = load_graph(tmp_path / "optimised.onnx", batch_size=3)
    assert graph_costs(graph).total.macs == graph_costs(direct).total.macs
    assert graph.parameter_count == direct.parameter_count
