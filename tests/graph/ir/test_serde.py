"""Files of graphs: exact, deterministic, and a damaged one is refused with one clear error."""

import json
import zlib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretell.errors import GraphError
from foretell.graph import Graph, Node
from foretell.graph.ir import serde
from foretell.testing import chain, one_node, tiny_graph


def rich_graph() -> Graph:
    """Every field filled."""
    body = one_node("MatMul", [(2, 4), (4, 4)], [(2, 4)], weights=[1])
    attributes = {"i": 1, "f": 0.5, "s": "é", "is": (1, 2), "fs": (0.1, 1e-30), "ss": ("a", ""), "none": ()}
    nodes = [
        Node("a", "Loop", ("x",), ("y", ""), attributes, "org.example", "a.b", "origin", "Gelu", (body,)),
        Node("b", "Clip", ("y", "", ""), ("z",)),
    ]
    graph = chain(nodes, dict.fromkeys(["x", "y", "z"], (2, 4)), ["x"], ["z"], batch_size=2)
    more = {"held": {"y": "b"}, "fixed": frozenset({"z"})}
    return replace(graph, warnings=("watch out",), metadata={"key": "värde"}, **more)


@pytest.mark.parametrize("graph", [rich_graph(), tiny_graph()], ids=["rich", "tiny"])
def test_round_trip(graph: Graph) -> None:
    data = serde.to_bytes(graph)
    again = serde.from_bytes(data)
    assert again == graph
    assert list(again.tensors) == list(graph.tensors)
    assert again.hash == graph.hash
    assert serde.to_bytes(again) == data == serde.to_bytes(graph)
    assert all(type(v) is type(graph.nodes[0].attributes[k]) for k, v in again.nodes[0].attributes.items())


def test_files_are_complete_or_absent(tmp_path: Path) -> None:
    target = tmp_path / "folder" / "g.fgraph"
    serde.save(tiny_graph(), target)
    assert serde.load(target) == tiny_graph()
    assert [p.name for p in target.parent.iterdir()] == ["g.fgraph"]
    with pytest.raises(AttributeError):
        serde.save(None, target)  # type: ignore[arg-type]
    assert [p.name for p in target.parent.iterdir()] == ["g.fgraph"]
    assert serde.load(target) == tiny_graph()


DATA = serde.to_bytes(rich_graph())


@settings(max_examples=100, deadline=None)
@given(cut=st.integers(0, len(DATA) - 1))
def test_truncated_files(cut: int) -> None:
    with pytest.raises(GraphError):
        serde.from_bytes(DATA[:cut])


@settings(max_examples=150, deadline=None)
@given(flips=st.lists(st.tuples(st.integers(0, len(DATA) - 1), st.integers(0, 7)), min_size=1, max_size=4, unique=True))
def test_flipped_bits(flips: list[tuple[int, int]]) -> None:
    damaged = bytearray(DATA)
    for position, bit in flips:
        damaged[position] ^= 1 << bit
    with suppress(GraphError):  # the compressed stream ends in a few bits of padding that mean nothing
        assert serde.from_bytes(bytes(damaged)) == rich_graph()


@settings(max_examples=50, deadline=None)
@given(noise=st.binary(max_size=200), magic=st.booleans())
def test_random_bytes(noise: bytes, magic: bool) -> None:
    with pytest.raises(GraphError):
        serde.from_bytes((serde.MAGIC if magic else b"") + noise)


def packed(content: object) -> bytes:
    return serde.MAGIC + zlib.compress(json.dumps(content).encode())


ORIGINAL = json.loads(zlib.decompress(serde.to_bytes(tiny_graph())[len(serde.MAGIC) :]))
PATHS = [
    (key, *rest)
    for key, value in ORIGINAL.items()
    for rest in [
        (),
        *(
            ((0,), (0, 0), (0, 1), (0, 2), (0, 3), (0, 4))
            if isinstance(value, list) and value and isinstance(value[0], list)
            else ()
        ),
    ]
]


@settings(max_examples=200, deadline=None)
@given(
    path=st.sampled_from(PATHS),
    value=st.sampled_from([None, -7, 10**6, 0.5, True, "odd", [], {}, [[]], {"a": {}}, [None]]),
)
def test_well_packed_nonsense(path: tuple[str | int, ...], value: object) -> None:
    """Whatever JSON a file holds, reading it gives a valid graph or `GraphError`."""
    content = json.loads(json.dumps(ORIGINAL))
    holder = content
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = value
    with suppress(GraphError):
        serde.from_bytes(packed(content)).validate()


@pytest.mark.parametrize("content", [None, [], 7, {}, {"version": 99}, {"version": 1}])
def test_other_json(content: object) -> None:
    with pytest.raises(GraphError):
        serde.from_bytes(packed(content))


def test_a_newer_version_is_named() -> None:
    with pytest.raises(GraphError, match="version 99"):
        serde.from_bytes(packed({**ORIGINAL, "version": 99}))


def test_bombs_and_trailers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GraphError, match="after its end"):
        serde.from_bytes(DATA + b"more")
    monkeypatch.setattr(serde, "MAX_BYTES", 100)
    with pytest.raises(GraphError, match="more than 100 bytes"):
        serde.from_bytes(DATA)


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(GraphError):
        serde.from_bytes(serde.MAGIC + zlib.compress(b"[" * 200_000))


@pytest.mark.parametrize("graph", [rich_graph(), tiny_graph()], ids=["rich", "tiny"])
def test_a_document_is_json_and_gives_the_graph_back(graph: Graph) -> None:
    text = serde.to_document(graph)
    assert json.loads(text)["name"] == graph.name
    assert serde.from_document(text) == graph


def test_older_files_say_nothing_about_what_is_held() -> None:
    assert "held" not in ORIGINAL
    assert serde.from_bytes(packed(ORIGINAL)).held is None
    assert serde.from_bytes(packed(ORIGINAL | {"held": []})).held == {}


@pytest.mark.parametrize("held", [[[0, 99]], [[99, 0]], [[-1, 0]], [[0]], [0], {"x": 0}, [[0.5, 0]], None])
def test_impossible_holds_are_refused(held: object) -> None:
    with pytest.raises(GraphError):
        serde.from_bytes(packed(ORIGINAL | {"held": held}))


def test_a_document_that_is_no_graph_is_refused() -> None:
    with pytest.raises(GraphError):
        serde.from_document('{"version": 1}')


def test_bodies_are_validated() -> None:
    graph, body = tiny_graph(), tiny_graph()
    name = next(iter(body.tensors))
    odd = replace(body, tensors={**body.tensors, name: replace(body.tensors[name], dtype="Abs")})
    for inner in (odd, replace(body, batch_size=0)):
        whole = replace(graph, nodes=(replace(graph.nodes[0], bodies=(inner,)), *graph.nodes[1:]))
        with pytest.raises(GraphError):
            serde.from_bytes(serde.to_bytes(whole))
