"""A graph file is somebody's file too: its size is checked first, and a large one is read in a cage."""

import json
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from foretell.errors import GraphError, ModelError
from foretell.frontends import ModelRequest, caged, graph_file
from foretell.frontends.graph_file import load_graph_file, read_graph
from foretell.graph import Graph
from foretell.graph.ir import serde
from foretell.processes.cage import TooMuchError
from foretell.testing import tiny_graph
from foretell.workflows.workload import load_graph

READER = "foretell.frontends.graph_file:read_graph"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    serde.save(tiny_graph(), tmp_path / "tiny.fgraph")
    return tmp_path / "tiny.fgraph"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The readers that were called in a cage."""
    readers: list[str] = []

    def record(reader: str, request: ModelRequest) -> Graph:
        readers.append(reader)
        return read_graph(request)

    monkeypatch.setattr(caged, "read_caged", record)
    return readers


def test_a_small_file_needs_no_cage(path: Path, asked: list[str]) -> None:
    assert load_graph_file(ModelRequest(str(path))) == tiny_graph()
    assert not asked


def test_a_large_file_or_a_limit_needs_a_cage(path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    load_graph_file(ModelRequest(str(path), timeout_s=60))
    assert asked == [READER]
    monkeypatch.setattr(graph_file, "MAX_FAST_BYTES", 100)
    assert load_graph_file(ModelRequest(str(path))) == tiny_graph()
    assert asked == [READER, READER]


def test_the_cage_is_real(path: Path) -> None:
    assert load_graph(path, timeout_s=300).hash == load_graph(path).hash
    # a text that is longer than the limit: what a tiny graph needs, a process may have at hand
    serde.save(replace(tiny_graph(), metadata={"note": "x" * 2**23}), path)
    with pytest.raises(TooMuchError, match=r"tiny\.fgraph needed more than 0\.001 GiB"):
        load_graph(path, memory_limit_gib=0.001)


def test_the_size_is_checked_before_the_file_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_bytes", lambda _: pytest.fail("it was read"))
    with path.open("r+b") as file:
        file.truncate(2**32)  # sparse: it takes no room
    with pytest.raises(ModelError, match="a graph file has at most"):
        load_graph_file(ModelRequest(str(path)))


def test_damage_is_an_error_of_ours(path: Path) -> None:
    for text in (b"{", b"[1]", b"\xff", b"[" * 10**5):
        path.write_bytes(serde.MAGIC + zlib.compress(text))
        with pytest.raises(GraphError, match="damaged"):
            load_graph_file(ModelRequest(str(path)))
    path.write_bytes(serde.MAGIC + b"nothing")
    with pytest.raises(GraphError, match="damaged"):
        load_graph_file(ModelRequest(str(path)))


@pytest.mark.parametrize("kind", ["nodes", "edges", "elements", "bytes of names"])
def test_everything_is_drawn_from_the_budget(path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setitem(graph_file.LIMITS, kind, 2)
    with pytest.raises(ModelError, match=f"more than 2 {kind}"):
        load_graph_file(ModelRequest(str(path)))


def test_bodies_are_counted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = tiny_graph()
    node = replace(graph.nodes[0], bodies=(tiny_graph(),))
    serde.save(replace(graph, nodes=(node, *graph.nodes[1:])), path)
    monkeypatch.setitem(graph_file.LIMITS, "nodes", len(graph.nodes))
    with pytest.raises(ModelError, match="nodes"):
        load_graph_file(ModelRequest(str(path)))


def test_a_document_with_odd_text_is_refused() -> None:
    document = json.loads(serde.to_document(tiny_graph()))
    document["strings"] = 7
    with pytest.raises(GraphError, match="damaged"):
        serde.from_document(json.dumps(document) + "\ud800")
