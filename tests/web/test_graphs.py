"""Graphs that a worker keeps: by content, never by a name that another file may have."""

from pathlib import Path

import pytest

from foretell.errors import ModelError
from foretell.graph import Graph
from foretell.testing import tiny_graph
from foretell.web import graphs as module
from foretell.web.graphs import Graphs

OPTIONS = {"input_shape": None, "mode": "inference", "allow_unknown": False, "use_cache": False, "batch_size": 8}


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, object]]]:
    calls: list[tuple[str, dict[str, object]]] = []

    def load_graph(model: str, **options: object) -> Graph:
        calls.append((model, options))
        return tiny_graph(channels=4 + len(calls))

    monkeypatch.setattr(module, "load_graph", load_graph)
    return calls


def accept(_: str) -> None:
    pass


def test_a_content_is_read_once_wherever_it_lies_and_a_name_each_time(loaded: list[tuple[str, object]]) -> None:
    graphs, content = Graphs(), "ab" * 32 + ".onnx"
    assert graphs.of(f"/one/{content}", OPTIONS, accept) is graphs.of(f"/two/{content}", OPTIONS, accept)
    assert graphs.of("timm:a", OPTIONS, accept) is graphs.of("timm:a", OPTIONS, accept)
    assert graphs.of("/one/net.onnx", OPTIONS, accept) is not graphs.of("/one/net.onnx", OPTIONS, accept)
    assert [model for model, _ in loaded] == [f"/one/{content}", "timm:a", "/one/net.onnx", "/one/net.onnx"]
    assert graphs.read == 4


def test_another_shape_or_mode_is_another_graph(loaded: list[tuple[str, object]]) -> None:
    graphs = Graphs()
    for more in ({}, {"mode": "training"}, {"input_shape": ["3x8x8"]}, {"context": 5}, {"batch_size": 9}):
        graphs.of("timm:a", {**OPTIONS, **more}, accept)
    assert len(loaded) == 4  # the batch size is none of the graph's


def test_what_is_refused_is_not_read(loaded: list[tuple[str, object]]) -> None:
    def refuse(model: str) -> None:
        raise ModelError(f"not {model}")

    for model in ("/one/net.onnx", "/one/" + "ab" * 32 + ".onnx"):
        with pytest.raises(ModelError, match="not /one"):
            Graphs().of(model, OPTIONS, refuse)
    assert loaded == []


def test_the_least_recently_used_go_beyond_a_number_of_nodes(loaded: list[tuple[str, object]]) -> None:
    graphs = Graphs(most_nodes=2 * len(tiny_graph().nodes))
    for name in ("a", "b", "a", "c", "a", "b"):
        graphs.of(f"timm:{name}", OPTIONS, accept)
    assert [model for model, _ in loaded] == ["timm:a", "timm:b", "timm:c", "timm:b"]


def test_a_real_file_is_read(tmp_path: Path, onnx_bytes: bytes) -> None:
    path = tmp_path / ("0f" * 32 + ".onnx")
    path.write_bytes(onnx_bytes)
    graphs = Graphs()
    graph = graphs.of(str(path), OPTIONS, accept)
    path.unlink()
    assert graphs.of(str(path), OPTIONS, accept) is graph
