"""Tensors that a forward pass makes without a device are traced on that of the model."""

import pytest

from foretell.errors import ModelError
from foretell.frontends.torch.tracing.devices import NOTE
from foretell.graph import graph_costs
from foretell.workflows.workload import load_graph

torch = pytest.importorskip("torch")


class Positions(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 8)

    def forward(self, x):
        return self.linear(x + torch.arange(x.shape[1])[:, None])


class Stubborn(Positions):
    def forward(self, x):
        return self.linear(x + torch.zeros(6, 4, device="cpu"))


def test_a_tensor_without_a_device_is_made_where_the_model_is():
    graph = load_graph(Positions(), input_shape=(6, 4), batch_size=2)
    assert graph_costs(graph).total.macs == 2 * 6 * 4 * 8
    assert NOTE in graph.warnings


def test_a_tensor_on_the_cpu_is_refused_with_what_to_do():
    with pytest.raises(ModelError, match=r"torch.arange\(n, device=x.device\)"):
        load_graph(Stubborn(), input_shape=(6, 4))


def test_a_model_that_names_its_devices_gets_no_note():
    assert load_graph(torch.nn.Linear(4, 8), input_shape=(4,)).warnings == ()
