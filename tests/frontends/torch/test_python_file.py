"""``net.py:build`` runs only with trust; a module in hand is never touched."""

from pathlib import Path

import pytest

from foretell.errors import InputError, ModelError, UntrustedModelError
from foretell.graph import graph_costs
from foretell.workflows.workload import load_graph

NET = """import torch
def build():
    return torch.nn.Linear(8, 4)
def pair():
    return torch.nn.Linear(8, 4), torch.zeros(3, 8)
"""


def test_trust_is_required_before_torch_is_imported_or_code_runs(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(f"open({str(tmp_path / 'PWNED')!r}, 'w')\n")
    with pytest.raises(UntrustedModelError, match="--trust"):
        load_graph(f"{path}:build")
    assert not (tmp_path / "PWNED").exists()


def test_a_trusted_file_is_run(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "net.py").write_text(NET)
    graph = load_graph(f"{tmp_path / 'net.py'}:build", input_shape="8", batch_size=3, trust=True)
    assert (graph.parameter_count, graph_costs(graph).total.macs) == (36, 96)
    assert load_graph(f"{tmp_path / 'net.py'}:pair", batch_size=3, trust=True).hash == graph.hash
    with pytest.raises(UntrustedModelError):  # what was kept is not handed out without trust
        load_graph(f"{tmp_path / 'net.py'}:build", input_shape="8", batch_size=3)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("raise RuntimeError('on import')", "on import"),
        ("import sys; sys.exit(0)", "SystemExit"),
        ("def build(): raise SystemExit(0)", "SystemExit"),
        ("def build(): raise KeyError('x')", "KeyError"),
        ("def build(): return 3", "returned int"),
        ("def other(): ...", "It has: other"),
        ("syntax error", "SyntaxError"),
    ],
)
def test_code_that_fails(tmp_path: Path, code: str, expected: str) -> None:
    pytest.importorskip("torch")
    (tmp_path / "net.py").write_text(code)
    with pytest.raises(ModelError, match=expected):
        load_graph(f"{tmp_path / 'net.py'}:build", input_shape="8", trust=True)


def test_a_module_is_not_touched() -> None:
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Dropout()).train()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    graph = load_graph(net, input_shape=(8,))
    assert graph.parameter_count == 36
    assert net.training
    assert all(v.device.type == "cpu" and torch.equal(v, before[k]) for k, v in net.state_dict().items())
    with pytest.raises(InputError, match="not known"):
        load_graph(net)
    with pytest.raises(InputError, match="no input 'zz'"):
        load_graph(net, input_shape={"zz": (8,)})


def test_a_constructor_that_reads_tensors_back_is_built_all_the_same(tmp_path):
    """``[x.item() for x in torch.linspace(…)]`` is how many models spread their drop rates."""
    pytest.importorskip("torch")
    code = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rates = [x.item() for x in torch.linspace(0, 1, 3)]
        self.linear = torch.nn.Linear(8, 4)

    def forward(self, x):
        return self.linear(x) * self.rates[1]

def build():
    return Net()
"""
    (tmp_path / "net.py").write_text(code)
    assert load_graph(f"{tmp_path / 'net.py'}:build", input_shape="8", trust=True).parameter_count == 36
