"""Frontends: caches converted graphs in the user's cache folder, keyed by the content of the model.

An entry begins with a checksum of its name and its content. One that was changed, or that got the name of another
model's entry, is not believed: it is deleted and the model is converted again.
"""

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from foretell.errors import GraphError
from foretell.files import write_whole
from foretell.frontends.request import ModelRequest
from foretell.graph import Graph
from foretell.graph.ir import serde

# raise it when any conversion changes: no older entry is found
CONVERTER_VERSION = 8
# raise it when only a framework's worker or the normalisation changes: cached graphs of PyTorch models stay valid
NORMALISER_VERSION = 3
MAX_ENTRIES = 2000  # the least recently used ones beyond this are deleted


def cache_folder() -> Path:
    """Return ``$FORETELL_CACHE``, else ``$XDG_CACHE_HOME/foretell``, else ``~/.cache/foretell``."""
    folder = os.environ.get("FORETELL_CACHE")
    if folder:
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "foretell"


def entry_path(frontend: str, fingerprint: str, request: ModelRequest) -> Path:
    """Return the path at which the graph of a request is cached, whether it exists or not."""
    # trust is not among them: a cached graph is read without running the model's code
    options = (
        request.inputs,
        request.mode == "training",
        request.mode,
        request.dtype,
        request.context,
        request.allow_unknown,
        request.as_written,
    )
    text = repr((CONVERTER_VERSION, serde.VERSION, frontend, fingerprint, options))
    return cache_folder() / "graphs" / f"{hashlib.sha256(text.encode()).hexdigest()[:40]}.fgraph"


def read(path: Path) -> Graph | None:
    """Return a cached graph, or None. A damaged entry is deleted."""
    try:
        head, _, content = path.read_bytes().partition(b"\n")
        if head != _head(path, content):
            raise GraphError("The cached graph was changed.")
        graph = serde.from_bytes(content)
    except OSError:
        return None
    except GraphError:
        with suppress(OSError):
            path.unlink()
        return None
    with suppress(OSError):
        os.utime(path)  # marks the entry as used
    return graph


def _head(path: Path, content: bytes) -> bytes:
    return b"foretell-cache " + hashlib.sha256(path.name.encode() + b"\n" + content).hexdigest().encode()


def write(path: Path, graph: Graph) -> None:
    """Cache a graph. It is no error if the folder cannot be written."""
    with suppress(OSError):
        content = serde.to_bytes(graph)
        # the checksum tells an entry that a crash of the machine cut short, and the model is converted again
        write_whole(path, _head(path, content) + b"\n" + content, durable=False)
        entries = sorted(path.parent.glob("*.fgraph"), key=lambda p: p.stat().st_mtime)
        for old in entries[: max(0, len(entries) - MAX_ENTRIES)]:
            old.unlink(missing_ok=True)
