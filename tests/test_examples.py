"""The examples: the notebook's cells run offline and are what its script writes; the search finds what it says."""

import importlib.util
import json
import random
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import foretell

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_notebook", EXAMPLES / "make_notebook.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cells() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((EXAMPLES / "first-steps.ipynb").read_text(encoding="utf-8"))["cells"]
    return found


def test_the_notebook_is_what_its_script_writes() -> None:
    assert [(cell["cell_type"], "".join(cell["source"])) for cell in cells()] == maker().sources()


def test_its_cells_run_offline_and_print_something_like_what_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_options: object) -> None:
        raise OSError("a notebook that runs offline opens no connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.chdir(EXAMPLES)
    names: dict[str, object] = {}
    for cell in cells():
        if cell["cell_type"] == "code":
            shown = maker().run("".join(cell["source"]), names)
            stored = "".join(text for output in cell["outputs"] for text in output["text"])
            # numbers move with every fit, and rows with every ranking: the first word of a cell stays
            assert bool(shown) is bool(stored)
            assert re.findall(r"[A-Za-z:]+", shown)[:1] == re.findall(r"[A-Za-z:]+", stored)[:1]


def test_the_notebook_is_small() -> None:
    assert (EXAMPLES / "first-steps.ipynb").stat().st_size < 20_000


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # search_measure imports search
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def search() -> Iterator[ModuleType]:
    yield example("search")
    del sys.modules["search"]


def test_the_search_keeps_what_is_within_the_limits_on_both_devices(search: ModuleType) -> None:
    candidates = [search.draw(random.Random(seed)) for seed in range(6)]
    every = search.judge(candidates, ("l4", "h200"), 8, search.Limits(1e9, 1e9))
    assert [one.candidate for one in every] == candidates
    slowest = sorted(one.slowest_ms for one in every)
    within = search.judge(candidates, ("l4", "h200"), 8, search.Limits(slowest[2], 1e9))
    assert {one.candidate for one in within} == {one.candidate for one in every if one.slowest_ms <= slowest[2]}
    assert all(set(one.predicted) == {"l4", "h200"} for one in within)
    assert search.judge(candidates, ("l4", "h200"), 8, search.Limits(1e9, 1.0)) == []
    front = search.front_of(every)
    for one in every:
        beaten = [better for better in front if all(a <= b for a, b in zip(better.objectives, one.objectives))]
        assert beaten, "whoever is not on the front is beaten by somebody who is"
    assert sorted(front, key=lambda one: -one.score) == front


def test_two_candidates_that_differ_in_absent_blocks_are_one_network(search: ModuleType) -> None:
    first = search.draw(random.Random(1))
    absent = [first.depths[gene // 4] <= gene % 4 for gene in range(20)].index(True)
    widths = tuple(9 - width if gene == absent else width for gene, width in enumerate(first.widths))
    second = search.Candidate(first.resolution, first.depths, first.kernels, widths)
    assert first != second
    assert first.network == second.network
    assert search.build(first).hash == search.build(second).hash == search.build(first.network).hash


def test_the_graph_that_the_search_writes_is_that_of_the_network_that_is_measured(search: ModuleType) -> None:
    small = search.Candidate(128, (2, 1, 1, 1, 1), (5,) * 20, (3,) * 20)
    written = foretell.predict(search.build(small), batch_size=32, dtype="fp16")
    module = example("search_measure").network(small)
    traced = foretell.predict(module, input_shape=(3, 128, 128), batch_size=32, dtype="fp16")
    assert written.latency_ms is not None
    assert written.latency_ms == traced.latency_ms
    assert written.facts["macs"] == traced.facts["macs"]
