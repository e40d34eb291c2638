"""Frontends: how much of the machine one model may take. Every reader draws from a `Budget` before it loops.

Idea: a small file can describe something huge: a split into 2³⁰ pieces, functions that call functions, a list that
grows with every node. Whoever is about to loop over something that a file controls first draws its size from the budget
of the model. What does not fit is refused before anything is allocated. The same holds for files: their size is
checked before they are read or hashed, and JSON is counted before it is parsed.

The limits leave room for the largest models that are known (some 50,000 nodes), and reading, costing and predicting a
model that uses all of them takes less than half a minute and less than 4 GiB.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from foretell.errors import ModelError

LIMITS = {
    "nodes": 100_000,
    "edges": 1_000_000,  # inputs and outputs of nodes, and the tensors that a file lists
    "elements": 2**24,  # items of sequences, values that decide shapes, items of JSON
    "bytes of names": 2**26,
    "bytes of attributes": 2**26,  # without tensors
}
MAX_ONNX_BYTES = 2**31  # protobuf's own limit; larger models keep their weights in other files
MAX_NAME_BYTES = 2**14  # of one name: names are copied and joined to make others
MAX_MODULE_DEPTH = 64  # of a path such as layer1.0.conv1


class Budget:
    """What is left for one model. ``limits`` are by kind; a kind that is not listed cannot be drawn."""

    def __init__(self, model: str, limits: Mapping[str, int] = LIMITS) -> None:
        self.model = model
        self.limits = limits
        self._left = dict(limits)

    def draw(self, kind: str, amount: int) -> None:
        """Take ``amount`` of a kind; raise if it is more than is left.

        >>> Budget("net.onnx").draw("nodes", 10**9)
        Traceback (most recent call last):
        ...
        foretell.errors.ModelError: net.onnx needs more than 100000 nodes, which is too much for one model.
        """
        self._left[kind] -= amount
        if self._left[kind] < 0:
            raise ModelError(
                f"{self.model} needs more than {self.limits[kind]} {kind}, which is too much for one model."
            )

    def draw_names(self, names: Iterable[str], times: int = 1) -> None:
        """Take the bytes of names that are about to be stored, each so many times."""
        lengths = list(map(len, names))
        if max(lengths, default=0) > MAX_NAME_BYTES:
            raise ModelError(
                f"{self.model} has a name of {max(lengths)} characters; at most {MAX_NAME_BYTES} are allowed."
            )
        self.draw("bytes of names", sum(lengths) * times)


def check_size(path: Path, max_bytes: int, what: str) -> int:
    """Return the size of a file; raise if it is larger than ``what`` may be."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise ModelError(f"Cannot read {path}: {error.strerror or error}.") from error
    if size > max_bytes:
        raise ModelError(f"{path.name} has {size} bytes, but {what} has at most {max_bytes}: it is not {what}.")
    return size


def digest_file(path: Path, max_bytes: int, what: str) -> str:
    """Return the SHA-256 of a file's content, after its size was checked."""
    check_size(path, max_bytes, what)
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelError(f"Cannot read {path}: {error.strerror or error}.") from error


def parse_json(text: bytes, budget: Budget, *, finite: bool = True) -> Any:
    """Parse JSON whose items were counted first; ``ValueError`` or ``RecursionError`` if it is none.

    An item takes up to 30 times as much memory as text. NaN and infinities are not JSON, and are refused if ``finite``.
    """
    budget.draw("elements", text.count(b",") + text.count(b"[") + text.count(b"{"))
    return json.loads(text, parse_constant=_refuse_constant if finite else None)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def module_path(path: str) -> str:
    """Return the path of a module without the levels below `MAX_MODULE_DEPTH`.

    >>> module_path("layer1.0.conv1")
    'layer1.0.conv1'
    """
    return path if path.count(".") < MAX_MODULE_DEPTH else ".".join(path.split(".", MAX_MODULE_DEPTH)[:-1])
