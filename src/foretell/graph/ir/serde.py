"""Graph: the file format of a graph: a magic line, then zlib-compressed JSON with a version.

A file holds data only. Reading one never runs code, and everything that is read is checked.
"""

import json
import os
import zlib
from pathlib import Path
from typing import Any, get_args

from foretell.errors import GraphError
from foretell.files import write_whole
from foretell.graph.ir.graph import Graph
from foretell.graph.ir.node import Attribute, Node
from foretell.graph.ir.tensor import Tensor, TensorKind
from foretell.units import MIB

MAGIC = b"foretell-graph\n"
VERSION = 1
MAX_BYTES = 128 * MIB  # of unpacked JSON: a decompression bomb is refused before it fills the memory
KINDS = get_args(TensorKind)


def to_bytes(graph: Graph) -> bytes:
    """Return the graph as the bytes of a compact file."""
    return MAGIC + zlib.compress(json.dumps(_packed(graph), separators=(",", ":")).encode(), 6)


def to_document(graph: Graph) -> str:
    """Return the graph as JSON text, for a table that compresses its columns itself."""
    return json.dumps(_packed(graph), separators=(",", ":"))


def from_document(text: str | bytes) -> Graph:
    """Read the text that `to_document` returned."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damaged() from error
    return from_content(content)


def from_bytes(data: bytes) -> Graph:
    """Read the bytes that `to_bytes` returned."""
    return from_document(unpack(data))


def is_longer(data: bytes, max_bytes: int) -> bool:
    """Whether a graph file has more than so many bytes of JSON; not more than these are unpacked."""
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(data[len(MAGIC) :], max_bytes + 1)
    except zlib.error:
        return False
    return len(text) > max_bytes


def unpack(data: bytes) -> bytes:
    """Return the JSON of a graph file, which is not read yet; raise if it is longer than `MAX_BYTES`."""
    if not data.startswith(MAGIC):
        raise GraphError("This is not a foretell graph file: its first line is missing.")
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(data[len(MAGIC) :], MAX_BYTES)
    except zlib.error as error:
        raise _damaged() from error
    if unpacker.unconsumed_tail:
        raise GraphError(f"The graph file unpacks to more than {MAX_BYTES} bytes: refused.")
    if not unpacker.eof or unpacker.unused_data:
        raise GraphError("The graph file is truncated, or has data after its end. Convert the model again.")
    return text


def from_content(content: Any) -> Graph:
    """Return the graph of parsed JSON, after all of it was checked."""
    try:
        if content["version"] != VERSION:
            raise GraphError(
                f"The graph file has version {content['version']}; this foretell reads version {VERSION}. "
                "Convert the model again."
            )
        graph = _unpacked(content)
    # a damaged or hostile file can break anywhere: all of it is one error to the user
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        if isinstance(error, GraphError):
            raise
        raise _damaged() from error
    _validate(graph)
    return graph


def _validate(graph: Graph) -> None:
    """Validate a graph and all bodies in it."""
    graph.validate()
    for node in graph.nodes:
        for body in node.bodies:
            _validate(body)


def _damaged() -> GraphError:
    return GraphError("The graph file is damaged. Convert the model again.")


def save(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write a graph file. An interrupted write leaves the old file, or none."""
    write_whole(Path(path), to_bytes(graph))


def load(path: str | os.PathLike[str]) -> Graph:
    """Read a graph file."""
    return from_bytes(Path(path).read_bytes())


def _packed(graph: Graph) -> dict[str, Any]:
    """The graph as JSON values: tensors are numbered, and repeated strings are stored once in a table."""
    numbers = {name: i for i, name in enumerate(graph.tensors)}
    strings: dict[str, int] = {}

    def text(value: str) -> int:
        return strings.setdefault(value, len(strings))

    tensors = [
        [t.name, list(t.shape), text(t.dtype), KINDS.index(t.kind), -1 if t.batch_axis is None else t.batch_axis]
        for t in graph.tensors.values()
    ]
    nodes = [
        [
            n.name,
            text(n.op),
            [numbers[i] if i else -1 for i in n.inputs],
            [numbers[o] if o else -1 for o in n.outputs],
            {k: list(v) if isinstance(v, tuple) else v for k, v in n.attributes.items()},
            text(n.domain),
            text(n.module),
            text(n.origin),
            text(n.origin_op),
            [_packed(b) for b in n.bodies],
        ]
        for n in graph.nodes
    ]
    packed = {
        "version": VERSION,
        "name": graph.name,
        "batch_size": graph.batch_size,
        "inputs": [numbers[i] for i in graph.inputs],
        "outputs": [numbers[o] for o in graph.outputs],
        "warnings": list(graph.warnings),
        "metadata": dict(graph.metadata),
        "strings": list(strings),
        "tensors": tensors,
        "nodes": nodes,
    }
    if graph.held is not None:  # absent from older files, and from graphs of files that are not programs
        positions = {node.name: position for position, node in enumerate(graph.nodes)}
        packed["held"] = [
            [numbers[name], positions[node]]
            for name, node in graph.held.items()
            if name in numbers and node in positions
        ]
    if graph.fixed:
        packed["fixed"] = sorted(numbers[name] for name in graph.fixed if name in numbers)
    return packed


def _unpacked(content: dict[str, Any]) -> Graph:
    """The graph of JSON values that `_packed` made; anything unexpected raises."""
    strings = [str(s) for s in content["strings"]]
    tensors = [
        Tensor(
            str(name),
            _integers(shape),
            strings[dtype],
            _kind(kind),
            None if axis == -1 else _integer(axis),
        )
        for name, shape, dtype, kind, axis in content["tensors"]
    ]
    names = [t.name for t in tensors]

    def named(numbers: list[int]) -> tuple[str, ...]:
        if numbers and min(numbers) < -1:  # Python would count a negative index from the end
            raise IndexError(numbers)
        return tuple([names[i] if i != -1 else "" for i in numbers])

    nodes = tuple(
        Node(
            str(name),
            strings[op],
            named(inputs),
            named(outputs),
            {str(k): _attribute(v) for k, v in attributes.items()},
            strings[domain],
            strings[module],
            strings[origin],
            strings[origin_op],
            tuple(_unpacked(b) for b in bodies),
        )
        for name, op, inputs, outputs, attributes, domain, module, origin, origin_op, bodies in content["nodes"]
    )
    return Graph(
        str(content["name"]),
        nodes,
        {t.name: t for t in tensors},
        named(content["inputs"]),
        named(content["outputs"]),
        _integer(content["batch_size"]),
        tuple(str(w) for w in content["warnings"]),
        {str(k): str(v) for k, v in content["metadata"].items()},
        _held(content["held"], names, nodes) if "held" in content else None,
        frozenset(named([_integer(number) for number in content.get("fixed", [])])),
    )


def _held(pairs: list[list[int]], names: list[str], nodes: tuple[Node, ...]) -> dict[str, str]:
    if any(_integer(number) < 0 for pair in pairs for number in pair):
        raise IndexError(pairs)
    return {names[tensor]: nodes[position].name for tensor, position in pairs}


def _attribute(value: object) -> Attribute:
    """Check an attribute: a number, a string, or a list of these."""
    if isinstance(value, int | float | str):
        return value
    if isinstance(value, list) and all(isinstance(v, int | float | str) for v in value):
        return tuple(value)
    raise TypeError(f"{value!r} is not an attribute")


def _integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is not an integer")
    return value


def _integers(values: list[Any]) -> tuple[int, ...]:
    if not set(map(type, values)) <= {int}:  # exact types: a bool is an int in Python, but not here
        raise TypeError(f"{values!r} are not integers")
    return tuple(values)


def _kind(value: object) -> TensorKind:
    number = _integer(value)
    if number < 0:
        raise IndexError(number)
    return KINDS[number]  # type: ignore[no-any-return]
