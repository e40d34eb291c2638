"""What a program still holds after each call, as watched while it is exported."""

import pytest

from foretell.graph import Graph
from foretell.graph.memory.liveness import inference_tape

torch = pytest.importorskip("torch")

from foretell.frontends.torch.export import graph_from_program
from foretell.frontends.torch.program import TorchProgram
from foretell.frontends.torch.tracing import releases

WIDTH = 8


class Named(torch.nn.Module):
    """Keeps the first result under a name of its own until it returns."""

    def forward(self, x):
        first = x + 1
        second = first * 2
        third = second.exp()
        return third.tanh()


class Rebound(torch.nn.Module):
    """Overwrites the only name: every result goes as soon as the next one is there."""

    def forward(self, x):
        x = x + 1
        x = x * 2
        x = x.exp()
        return x.tanh()


class Listed(torch.nn.Module):
    """Collects results in a list, and calls another module with a temporary."""

    def __init__(self):
        super().__init__()
        self.inner = Rebound()

    def forward(self, x):
        maps = []
        for _ in range(2):
            x = x.relu()
            maps.append(x)
        left, right = self.inner(torch.cat(maps, -1)).chunk(2, -1)
        return left.sigmoid() + right


def export(module) -> Graph:
    program = TorchProgram("m", module.to("meta"), (torch.zeros(11, WIDTH, device="meta"),))
    return graph_from_program(program, batch_size=11)


def test_a_name_holds_its_tensor_until_the_frame_returns() -> None:
    assert export(Named()).held == {"add": "tanh", "mul": "tanh"}


def test_a_name_that_is_overwritten_holds_nothing() -> None:
    assert export(Rebound()).held == {}


def test_lists_callers_and_parts_hold() -> None:
    held = export(Listed()).held
    assert held is not None
    # the list has both maps to the end; the temporary ``cat`` lives until the module that got it returns
    assert held["relu"] == held["relu_1"] == "add_1"
    assert held["cat"] == "tanh"
    assert held["chunk.0"] == "add_1"
    # the result of the inner module has no name: its parts, which are views, keep it
    assert held["tanh"] == "add_1"


def test_what_is_held_counts_in_the_peak() -> None:
    peaks = [inference_tape(export(module)).peak()[0] for module in (Rebound(), Named())]
    assert peaks[0] < peaks[1]


def test_the_tracer_is_left_as_it_was() -> None:
    from torch.fx.experimental import proxy_tensor

    before = proxy_tensor.track_tensor
    export(Named())
    assert proxy_tensor.track_tensor is before


def test_a_torch_without_the_hook_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releases.importlib, "import_module", lambda name: object())
    with releases.watch_releases() as watched:
        assert watched is None


def test_nodes_that_a_pass_removed_stand_for_the_one_before() -> None:
    watched = releases.Releases()

    class Value:
        pass

    a, b, c = Value(), Value(), Value()
    watched.watch(a, "a")
    watched.watch(b, "removed")
    del a
    watched.watch(c, "c")
    del b, c
    assert watched.by_tensor({"a": ("a", 1), "c": ("c", 2)}) == {"a": 1, "c": 2}


class Wrapped(torch.nn.Module):
    """Makes numbers under ``no_grad``, which the export wraps, and splits beside them; a name keeps one part."""

    def forward(self, x):
        left = self.left(x)
        return left.exp() + x

    def left(self, x):
        with torch.no_grad():
            first, second = x.sin(), x.cos()
        left, right = (x * first + second).chunk(2, -1)
        return (left + right).repeat(1, 2)


def test_parts_of_a_list_are_found_again_where_the_export_wraps_other_calls() -> None:
    held = export(Wrapped()).held
    assert held is not None
    assert {held.get(name) for name in ("chunk.0", "chunk.1")} == {"repeat"}
