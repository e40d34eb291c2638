"""Converted graphs are kept by content."""

import os
from pathlib import Path

import pytest

from foretell.frontends import ModelRequest, cache, convert, parse_inputs
from foretell.graph.ir import serde
from foretell.testing import tiny_graph, tiny_onnx


def test_the_folder_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FORETELL_CACHE", str(tmp_path / "own"))
    assert cache.cache_folder() == tmp_path / "own"
    monkeypatch.delenv("FORETELL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_folder() == tmp_path / "foretell"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.cache_folder() == Path.home() / ".cache" / "foretell"


def test_everything_that_changes_a_graph_changes_its_cache_entry() -> None:
    request = ModelRequest("m.onnx")
    entries = {
        cache.entry_path("onnx", "a", request),
        cache.entry_path("onnx", "b", request),
        cache.entry_path("pt2", "a", request),
        cache.entry_path("onnx", "a", ModelRequest("m.onnx", parse_inputs(["3x4"]))),
        cache.entry_path("onnx", "a", ModelRequest("m.onnx", mode="training")),
        cache.entry_path("onnx", "a", ModelRequest("m.onnx", allow_unknown=True)),
    }
    assert len(entries) == 6


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(tiny_onnx(size=16).SerializeToString())
    first = convert(ModelRequest(str(path)))
    path.write_bytes(tiny_onnx(size=20).SerializeToString())
    assert convert(ModelRequest(str(path))).hash != first.hash


def test_a_damaged_entry_is_dropped(tmp_path: Path) -> None:
    entry = tmp_path / "x.fgraph"
    assert cache.read(entry) is None
    cache.write(entry, tiny_graph())
    assert cache.read(entry) is not None
    entry.write_bytes(entry.read_bytes()[:-5])
    assert cache.read(entry) is None
    assert not entry.exists()


def test_an_entry_that_a_crash_cut_short_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: pytest.fail("a cached graph waits for the disk"))
    path = tmp_path / "a.fgraph"
    for kept in (0, 10, 100, -1):
        cache.write(path, tiny_graph())
        path.write_bytes(path.read_bytes()[:kept])
        assert cache.read(path) is None
        assert not path.exists()
    cache.write(path, tiny_graph())
    assert cache.read(path) == tiny_graph()


def test_the_oldest_entries_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MAX_ENTRIES", 2)
    for position in range(4):
        cache.write(tmp_path / f"{position}.fgraph", tiny_graph())
        os.utime(tmp_path / f"{position}.fgraph", (position, position))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["2.fgraph", "3.fgraph"]


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache.write(tmp_path / "file" / "x.fgraph", tiny_graph())


def test_an_entry_that_was_changed_by_hand_is_not_believed(tmp_path: Path) -> None:
    entry, other = tmp_path / "x.fgraph", tmp_path / "y.fgraph"
    forged = serde.to_bytes(tiny_graph().with_batch(64))
    cache.write(entry, tiny_graph())
    head, _, _ = entry.read_bytes().partition(b"\n")
    # a whole graph, but another one; the same without its checksum; another model's entry under this name
    cache.write(other, tiny_graph().with_batch(64))
    for content in (head + b"\n" + forged, forged, other.read_bytes()):
        entry.write_bytes(content)
        assert cache.read(entry) is None
        assert not entry.exists()
    graph = cache.read(other)
    assert graph is not None
    assert graph.batch_size == 64


def test_a_model_whose_cached_graph_was_changed_is_converted_again(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(tiny_onnx(size=16).SerializeToString())
    graph = convert(ModelRequest(str(path)))
    (entry,) = (cache.cache_folder() / "graphs").glob("*.fgraph")
    entry.write_bytes(serde.to_bytes(tiny_graph()))
    assert convert(ModelRequest(str(path))).hash == graph.hash
