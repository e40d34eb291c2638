"""TorchScript is read as text first: what reaches outside is refused before anything is loaded."""

import zipfile
from pathlib import Path
from typing import Any

import pytest

from foretell.errors import InputError, ModelError, UntrustedModelError
from foretell.frontends.request import ModelRequest
from foretell.frontends.torch.torchscript import TorchScriptFrontend, check_pickles, load_script
from foretell.graph import graph_costs
from foretell.workflows.workload import load_graph

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*TorchScript.*:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def _without_a_cage(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read is shown here, in this process, which has imported torch; `tests/attacks` shows the cage."""
    monkeypatch.setattr("foretell.frontends.caged.confined", lambda: True)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(8, 4),
    )
    path = tmp_path / "net.pt"
    torch.jit.trace(net.eval(), torch.zeros(1, 3, 8, 8)).save(str(path))
    return path


def with_code(source: Path, target: Path, change: Any) -> Path:
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            new.writestr(name, change(data) if name.endswith(".py") else data)
    return target


def test_costs_are_exact(script: Path) -> None:
    graph = load_graph(script, input_shape="3x8x8", batch_size=4)
    assert graph.parameter_count == 8 * 27 + 8 + 36
    assert graph_costs(graph).total.macs == 4 * (8 * 36 * 27 + 32)


def test_inputs_must_be_given_and_fit(script: Path) -> None:
    for shape, error in (
        (None, "does not contain the shapes"),
        (["3x8x8", "3"], "2 inputs"),
        (["zz=3x8x8"], "no input 'zz'"),
    ):
        with pytest.raises(InputError, match=error):
            load_graph(script, input_shape=shape)
    with pytest.raises(ModelError, match="could not run"):
        load_graph(script, input_shape="5x8x8")


@pytest.mark.parametrize(
    "line",
    [
        'torch.save(input, "PWNED")',
        'torch . save (input, "PWNED")',
        't = torch\n    t.save(input, "PWNED")',
        's = torch.save\n    s(input, "PWNED")',
        'ops.aten.save(input, "PWNED")',
        '_9 = torch.from_file("/etc/passwd", False, 10)',
        '_9 = getattr(torch, "save")',
        '_9 = ops.image.write_file("PWNED", input)',
        'print("hello")',
    ],
)
def test_code_that_reaches_outside_is_refused_unloaded(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setattr(torch.jit, "load", lambda *_, **__: pytest.fail("it was loaded"))
    method = f"  def forward(self, input: Tensor) -> Tensor:\n    {line}\n    return input\n"
    addition = f"\nclass Extra(Module):\n{method}".encode()
    evil = with_code(script, tmp_path / "evil.pt", lambda data: data + addition)
    for trust in (False, True):
        with pytest.raises(UntrustedModelError, match="refused"):
            load_graph(evil, input_shape="3x8x8", trust=trust)


def test_code_that_runs_on_loading_asks_for_trust(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    addition = b"\nclass Extra(Module):\n  def __setstate__(self, state: Tensor) -> NoneType:\n    return None\n"
    stateful = with_code(script, tmp_path / "state.pt", lambda data: data + addition)
    assert load_graph(stateful, input_shape="3x8x8", trust=True).parameter_count == 260
    monkeypatch.setattr(torch.jit, "load", lambda *_, **__: pytest.fail("it was loaded"))
    with pytest.raises(UntrustedModelError, match="--trust"):
        load_graph(stateful, input_shape="3x8x8")


def test_a_cut_archive_is_refused(script: Path, tmp_path: Path) -> None:
    content, path = script.read_bytes(), tmp_path / "cut.pt"
    for cut in range(1, len(content), max(len(content) // 15, 1)):
        path.write_bytes(content[:cut])
        with pytest.raises(ModelError):
            load_graph(path, input_shape="3x8x8")


def test_weights_are_not_hashed(script: Path, tmp_path: Path) -> None:
    frontend, request = TorchScriptFrontend(), ModelRequest(str(script))
    first = frontend.fingerprint(request)
    with zipfile.ZipFile(script) as old, zipfile.ZipFile(tmp_path / "other.pt", "w") as new:
        for name in old.namelist():
            data = old.read(name)
            new.writestr(name, b"\0" * len(data) if "/data/" in name else data)
    other = tmp_path / "other" / "net.pt"
    other.parent.mkdir()
    (tmp_path / "other.pt").rename(other)
    assert frontend.fingerprint(request.with_source(str(other))) == first
    changed = with_code(script, tmp_path / "net.pt2", lambda c: c + b"#").rename(other)
    assert frontend.fingerprint(request.with_source(str(changed))) != first


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\x80\x02X\xff\xff\xff\x7fabc.", "expected 2147483647 bytes"),  # a text of 2 GiB
        (b"\x80\x02r\x00\x00\x00\x10.", "place 268435456 of a table"),  # 4 GiB of places
        (b"\x80\x02", "pickle exhausted"),
        (b"", "pickle exhausted"),
    ],
)
def test_lengths_in_pickles_are_checked_before_pytorch_believes_them(
    script: Path, tmp_path: Path, content: bytes, problem: str
) -> None:
    check_pickles(script)
    damaged = tmp_path / "damaged.pt"
    with zipfile.ZipFile(script) as source, zipfile.ZipFile(damaged, "w") as target:
        for name in source.namelist():
            target.writestr(name, content if name.endswith("/data.pkl") else source.read(name))
    with pytest.raises(ModelError, match=problem):
        check_pickles(damaged)


def test_a_script_without_forward_is_refused(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.jit.script(torch.nn.Module()).save(str(tmp_path / "empty.pt"))
    with pytest.raises(ModelError, match="no method forward"):
        load_script(ModelRequest(str(tmp_path / "empty.pt")))
