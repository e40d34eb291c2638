"""Which tensors keep their precision when a model is cast."""

import pytest

from foretell.graph import Graph

torch = pytest.importorskip("torch")

from foretell.frontends.torch.export import graph_from_program
from foretell.frontends.torch.program import TorchProgram
from foretell.frontends.torch.tracing.precision import in_half_precision

WIDTH = 8


class Spectral(torch.nn.Module):
    """Leaves its precision for a Fourier transform, and multiplies by complex weights."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(WIDTH, WIDTH)
        self.weight = torch.nn.Parameter(torch.zeros(WIDTH // 2 + 1, dtype=torch.complex64))

    def forward(self, x):
        h = self.inner(x)
        spectrum = torch.fft.rfft(h.float()) * self.weight
        return torch.fft.irfft(spectrum, n=WIDTH).to(h.dtype) + h


def export(module, *, training: bool = False) -> Graph:
    program = TorchProgram("m", module.to("meta"), (torch.zeros(11, WIDTH, device="meta"),))
    return graph_from_program(program, batch_size=11, training=training)


def dtypes(graph: Graph) -> dict[str, str]:
    return {node.name: graph.tensors[node.outputs[0]].dtype for node in graph.nodes}


def test_single_precision_is_as_before() -> None:
    graph = export(Spectral())
    assert [node.op for node in graph.nodes] == ["Gemm", "Identity", "DFT", "Mul", "DFT", "Identity", "Add"]
    assert {tensor.dtype for tensor in graph.tensors.values()} == {"fp32", "complex64"}


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_explicit_casts_survive_half_precision(dtype: str) -> None:
    graph = export(Spectral()).with_dtype(dtype)
    assert [node.op for node in graph.nodes] == ["Gemm", "Cast", "DFT", "Mul", "DFT", "Cast", "Add"]
    # complex tensors never become half
    assert list(dtypes(graph).values()) == [dtype, "fp32", "complex64", "complex64", "fp32", dtype, dtype]
    assert graph.tensors["p_weight"].dtype == "complex64"
    # the sum reads the result of the layer, not its cast
    assert graph.nodes[-1].inputs == ("to_1", "linear")


def test_there_and_back() -> None:
    graph = export(Spectral())
    assert graph.with_dtype("bf16").with_dtype("fp32") == graph
    assert graph.with_dtype("bf16").with_dtype("fp16") == graph.with_dtype("fp16")


def test_training_is_exported_once() -> None:
    assert not export(Spectral(), training=True).fixed


def test_a_program_without_casts_has_nothing_fixed() -> None:
    assert not export(torch.nn.Linear(WIDTH, WIDTH)).fixed


def test_weights_stay_tied_complex_and_single() -> None:
    with torch.device("meta"):
        module = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH), Spectral())
        module[1].weight = module[0].weight
    with in_half_precision(TorchProgram("m", module, (torch.zeros(2, WIDTH),))) as program:
        assert program.module[0].weight.dtype == program.args[0].dtype == torch.bfloat16
        assert program.module[0].weight is program.module[1].weight
        assert program.module[2].weight.dtype == torch.complex64
    assert module[0].weight.dtype == torch.float32


class Halfless(torch.nn.Module):
    """Runs in single precision only."""

    def forward(self, x):
        if x.dtype != torch.float32:
            raise TypeError("single precision, please")
        return x.float() + 1


def test_a_program_that_cannot_run_in_half_keeps_its_graph() -> None:
    assert not export(Halfless()).fixed
