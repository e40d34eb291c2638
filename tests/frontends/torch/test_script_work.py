"""What a script would do is counted before it runs."""

from pathlib import Path
from typing import Any

import pytest

from foretell.errors import ModelError
from foretell.workflows.workload import load_graph

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*TorchScript.*:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def _without_a_cage(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, which has imported torch; `tests/attacks` shows the cage."""
    monkeypatch.setattr("foretell.frontends.caged.confined", lambda: True)


def test_a_script_is_counted_before_it_runs(tmp_path: Path) -> None:
    """Exporting runs a script: its loops turn, its lists grow."""

    def code(*lines: str) -> Any:
        class Empty(torch.nn.Module):  # type: ignore[misc, name-defined]
            """A class of its own: scripts of one class share their methods."""

        script = torch.jit.script(Empty().eval())
        script.define("def forward(self, x):\n" + "".join(f"    {line}\n" for line in lines))
        return script

    refused = {
        "while loop": code("i = 0", "while i < 1000000000000:", "    i += 1", "return x + i"),
        "joins lists": code("l = [1]", "for i in range(40):", "    l = l + l", "return x + len(l)"),
        "joins lists or texts": code("l = [1]", "for i in range(40):", "    l.extend(l)", "return x + len(l)"),
        "repeats a list": code("l = [1] * 10000000000", "return x + len(l)"),
        "in a loop, which may double": code("l = [1]", *["l = l + l"] * 40, "return x + len(l)"),
        "more than 100000 nodes": code("for i in range(1000000000):", "    x = x + 1", "return x"),
    }
    for number, (reason, script) in enumerate(refused.items()):
        path = tmp_path / f"{number}.pt"
        script.save(str(path))
        with pytest.raises(ModelError, match=reason):
            load_graph(path, input_shape=(3, 4), use_cache=False)
    turns = ["for i in range(3):", "    x = x * 2", "y = [x]", "for i in range(x.size(1)):", "    y.append(x)"]
    good = code(*turns, "return y[-1]")
    good.save(str(tmp_path / "good.pt"))
    assert len(load_graph(tmp_path / "good.pt", input_shape=(3, 4), use_cache=False).nodes) == 3


def test_methods_that_call_methods_twice_are_not_expanded(tmp_path: Path) -> None:
    class Twice(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x):  # type: ignore[no-untyped-def]
            return self.inner(self.inner(x))

    module = torch.nn.ReLU()
    for _ in range(40):
        module = Twice(module)
    torch.jit.script(module).save(str(tmp_path / "deep.pt"))
    with pytest.raises(ModelError, match="more than 100000 nodes"):
        load_graph(tmp_path / "deep.pt", input_shape=(3, 4), use_cache=False)
