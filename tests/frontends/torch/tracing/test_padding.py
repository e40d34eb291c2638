import pytest

from foretell.errors import ModelError
from foretell.frontends.torch.export import graph_from_program
from foretell.frontends.torch.program import TorchProgram
from foretell.frontends.torch.tracing.padding import nothing_padded

torch = pytest.importorskip("torch")


class Asks(torch.nn.Module):
    def forward(self, x):
        padded = x == -1
        return x.masked_fill(padded, 0.0) if padded.any() else x.relu()


class Looks(torch.nn.Module):
    def forward(self, x):
        return x.relu() if x.max() > 0 else x


def _graph(kind):
    return graph_from_program(TorchProgram("asks", kind(), (torch.empty(11, 4, device="meta"),)), batch_size=11)


def test_a_model_that_asks_for_padding_is_read_as_it_runs_without():
    graph = _graph(Asks)
    assert "Relu" in graph.operator_counts
    assert "Where" not in graph.operator_counts
    assert "ReduceAny" in graph.operator_counts  # the question itself is computed


def test_a_model_that_asks_for_other_values_is_refused():
    with pytest.raises(ModelError, match="values of tensors"):
        _graph(Looks)


def test_other_uses_of_any_are_as_before():
    with nothing_padded():
        assert torch.tensor([[True], [False]]).any(dim=1).tolist() == [True, False]
        assert int(torch.tensor([True]).any().int()) == 1
    assert bool(torch.tensor([True]).any())
