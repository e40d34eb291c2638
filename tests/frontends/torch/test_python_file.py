"""``net.py:build`` runs only with trust; a module in hand is never touched."""

import subprocess
import sys
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


GRAPH_NETWORK = """import torch
class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(33, 16)
        self.register_buffer("kept", torch.zeros(2, 70, dtype=torch.int64))
    def forward(self, x, edges=None):
        source, target = self.kept if edges is None else edges
        messages = self.linear(x)[source]
        return torch.zeros(x.shape[0], 16, device=x.device).index_add(0, target, messages)
def pair():
    return Layer(), (torch.zeros(22, 33), torch.zeros(2, 70, dtype=torch.int64))
def alone():
    return Layer(), torch.zeros(22, 33)
def dense():
    class Dense(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(33, 16)
            self.register_buffer("neighbours", torch.zeros(22, 22))
        def forward(self, x):
            return self.neighbours @ self.linear(x)
    return Dense(), torch.zeros(22, 33)
def build():
    return Layer()
"""
GRAPH_MACS = 22 * 33 * 16


@pytest.mark.parametrize(
    ("function", "reason"),
    [("pair", "no common first axis"), ("alone", "reads across it"), ("dense", "MatMul reads across it")],
)
def test_inputs_without_a_batch_stay_as_they_are(tmp_path: Path, function: str, reason: str) -> None:
    pytest.importorskip("torch")
    (tmp_path / "net.py").write_text(GRAPH_NETWORK)
    model = f"{tmp_path / 'net.py'}:{function}"
    graph = load_graph(model, trust=True)
    expected = GRAPH_MACS + (22 * 22 * 16 if function == "dense" else 0)
    assert (graph.batch_size, graph_costs(graph).total.macs) == (1, expected)
    assert any("22x33" in warning and reason in warning for warning in graph.warnings)
    with pytest.raises(InputError, match="has no batch, so the batch size cannot be 4"):
        load_graph(model, batch_size=4, trust=True)


TIME_FIRST = """import torch
def recurrent():
    return torch.nn.LSTM(6, 8), torch.zeros(30, 4, 6)
def transformer():
    return torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=False), torch.zeros(30, 4, 16)
def image():
    return torch.nn.Conv2d(3, 5, 3), torch.zeros(3, 9, 9)
"""


@pytest.mark.parametrize(
    ("function", "operator", "macs", "shape"),
    [
        ("recurrent", "LSTM", 30 * 4 * 32 * (6 + 8), "4x6"),
        ("transformer", "Attention", 30 * 4 * (4 * 256 + 2 * 16 * 32) + 2 * 4 * 30 * 30 * 16, "4x16"),
        ("image", "Conv", 5 * 27 * 49, ""),
    ],
)
def test_a_first_axis_of_time_is_no_batch(tmp_path: Path, function: str, operator: str, macs: int, shape: str) -> None:
    """PyTorch's own layers take (time, batch, …) unless they are told otherwise."""
    pytest.importorskip("torch")
    (tmp_path / "net.py").write_text(TIME_FIRST)
    model = f"{tmp_path / 'net.py'}:{function}"
    graph = load_graph(model, trust=True)
    assert graph_costs(graph).total.macs == macs
    assert any(f"{operator} reads across it" in warning for warning in graph.warnings)
    if shape:
        with pytest.raises(InputError, match=f"{operator} of net.py:{function} reads across the first axis"):
            load_graph(model, trust=True, input_shape=shape)


def test_weights_that_a_hook_computes_are_not_copied(tmp_path: Path) -> None:
    """The old weight_norm and spectral_norm leave a tensor that is no leaf, which deepcopy refuses."""
    pytest.importorskip("torch")
    code = """import torch, warnings
from torch.nn.utils import spectral_norm, weight_norm
warnings.simplefilter("ignore")
def build():
    return torch.nn.Sequential(weight_norm(torch.nn.Linear(6, 8)), spectral_norm(torch.nn.Linear(8, 5)))
"""
    (tmp_path / "net.py").write_text(code)
    graph = load_graph(f"{tmp_path / 'net.py'}:build", input_shape="6", batch_size=3, trust=True)
    assert graph.parameter_count == 6 * 8 + 8 + 8 + 8 * 5 + 5
    assert graph_costs(graph).total.macs >= 3 * (6 * 8 + 8 * 5)


def test_a_module_that_cannot_be_copied_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = """import torch, threading
class Net(torch.nn.Linear):
    def __init__(self):
        super().__init__(6, 8)
        self.lock = threading.Lock()
def build():
    return Net()
"""
    (tmp_path / "net.py").write_text(code)
    with pytest.raises(ModelError, match=r"Cannot copy Net: cannot pickle"):
        load_graph(f"{tmp_path / 'net.py'}:build", input_shape="6", trust=True)


@pytest.mark.parametrize("texts", [["22x33!", "2x70!:int64"], ["x=22x33!", "edges=2x70!:int64"]])
def test_an_input_with_an_exclamation_mark_has_no_batch(tmp_path: Path, texts: list[str]) -> None:
    """22 and 33 are multiples of the batch that models are traced with: nothing but the mark says what they are."""
    pytest.importorskip("torch")
    (tmp_path / "net.py").write_text(GRAPH_NETWORK)
    graph = load_graph(f"{tmp_path / 'net.py'}:build", input_shape=texts, trust=True)
    assert graph_costs(graph).total.macs == GRAPH_MACS
    assert graph.warnings == ()
    with pytest.raises(InputError, match="has no batch"):
        load_graph(f"{tmp_path / 'net.py'}:build", input_shape=texts, batch_size=2, trust=True)


def test_an_input_without_a_batch_beside_one_with_a_batch(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = """import torch
class Net(torch.nn.Module):
    def forward(self, x, table):
        return x @ table
def build():
    return Net()
"""
    (tmp_path / "net.py").write_text(code)
    graph = load_graph(f"{tmp_path / 'net.py'}:build", input_shape=["11", "table=11x22!"], batch_size=6, trust=True)
    assert [graph.tensors[name].shape for name in graph.inputs] == [(6, 11), (11, 22)]


def test_a_row_for_each_item_is_still_a_batch(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = """import torch
class Last(torch.nn.Module):
    def forward(self, x):
        return x[torch.arange(x.shape[0], device=x.device), 2]
def build():
    return Last(), torch.zeros(8, 5, 3)
"""
    (tmp_path / "net.py").write_text(code)
    graph = load_graph(f"{tmp_path / 'net.py'}:build", batch_size=2, trust=True)
    assert (graph.batch_size, graph.warnings) == (2, ())


def test_a_file_that_imports_torchvision_runs_beside_any_build_of_torch(tmp_path: Path) -> None:
    """A wheel of torchvision for CUDA cannot be imported beside torch for the CPU, unless it is repaired before."""
    pytest.importorskip("torch")
    code = f"""
from foretell.workflows.workload import load_graph
print(load_graph({str(tmp_path / "net.py")!r} + ":build", input_shape="8", trust=True, use_cache=False).parameter_count)
"""
    (tmp_path / "net.py").write_text("import torch, torchvision\ndef build(): return torch.nn.Linear(8, 4)\n")
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.stdout.strip() == "36", ended.stderr[-400:]
