"""Frontends: ONNX models of any opset that the installed onnx knows."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from foretell.frontends.budget import MAX_ONNX_BYTES, digest_file
from foretell.frontends.cache import NORMALISER_VERSION
from foretell.frontends.request import ModelRequest
from foretell.graph import Graph
from foretell.optional import installed_version
from foretell.units import MIB

MAX_PLAIN_BYTES = 64 * MIB
MAX_PLAIN_FIELDS = 256
_GRAPH = 7
# versions, producer, graph, opsets and metadata; not functions (25) or training (20)
_PLAIN_FIELDS = {1, 2, 3, 4, 5, 6, _GRAPH, 8, 14}


class OnnxFrontend:
    """Reads ONNX files and ``ModelProto`` objects.

    The library onnx is imported in ``load`` only: a model whose graph is cached does not need it, and its import takes
    longer than a prediction.
    """

    def load(self, request: ModelRequest) -> Graph:
        """Read and convert the model: a plain file here, any other one in a cage."""
        if isinstance(request.source, str) and (request.has_limits or not is_plain(Path(request.source))):
            from foretell.frontends.caged import read_caged  # here, because few files need it

            return read_caged("foretell.frontends.onnx.file:read_model", request)
        from foretell.frontends.onnx.file import read_model

        return read_model(request)

    def fingerprint(self, request: ModelRequest) -> str | None:
        """The content of the file, and the versions of onnx and of the conversion. A model in memory has none."""
        if not isinstance(request.source, str):
            return None
        path = Path(request.source)
        digest = digest_file(path, MAX_ONNX_BYTES, "an ONNX file")
        return f"{path.name} {digest} onnx {installed_version('onnx')} conversion {NORMALISER_VERSION}"


def is_plain(path: Path) -> bool:
    """Whether a file is so small and simple that no cage is needed: reading it takes little memory and time.

    Only the fields of the model itself are looked at, without parsing what is in them: a file with functions, which
    could unfold to any size, or with several graphs is not plain.
    """
    try:
        size = path.stat().st_size
        if size > MAX_PLAIN_BYTES:
            return False
        with path.open("rb") as file:
            fields = list(islice(_fields(file, size), MAX_PLAIN_FIELDS + 1))
    except (OSError, ValueError):
        return False
    return len(fields) <= MAX_PLAIN_FIELDS and set(fields) <= _PLAIN_FIELDS and fields.count(_GRAPH) == 1


def _fields(file: BinaryIO, size: int) -> Iterator[int]:
    """The numbers of the fields of a protobuf message; ValueError where it is damaged."""
    while file.tell() < size:
        tag = _number(file)
        if tag & 7 == 0:
            _number(file)
        elif tag & 7 == 2:
            length = _number(file)
            if length > size - file.tell():
                raise ValueError("a field is longer than the file")
            file.seek(length, 1)
        else:
            raise ValueError("no field of an ONNX model has this type")
        yield tag >> 3


def _number(file: BinaryIO) -> int:
    """A number of variable length: seven bits a byte, the lowest first."""
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            raise ValueError("the file ends inside a number")
        value |= (byte[0] & 127) << shift
        if byte[0] < 128:
            return value
    raise ValueError("a number is too long")
