"""Web: the worker process behind the tools. It reads one call a line and writes one answer a line.

server → worker    {"tool": "predict", "fields": {...}}
worker → server    {"event": "ready"}
                   {"text": "…"}       the answer
                   {"error": "…"}      why there is no answer

Before it is ready it gives up what it does not need: it may read the allowed folder and the caches, write only its own
folder and the cache, start no program and reach no network.
"""

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from foretell.errors import ForetellError
from foretell.frontends.cache import cache_folder
from foretell.processes.child import die_with_parent, redirect_output, short
from foretell.processes.confine import Confinement, confine
from foretell.units import bytes_from_mib

_LARGEST_FILE_MIB = 256  # a cached graph is far smaller

Message = dict[str, Any]


def main(folder: str, memory_mib: float) -> None:
    """Answer calls until the server closes standard input; an empty ``folder`` is none."""
    die_with_parent()
    send = redirect_output()
    limit(folder, memory_mib)
    warm()
    send({"event": "ready"})
    for line in sys.stdin.buffer:
        send(reply(json.loads(line)))


def limit(folder: str, memory_mib: float) -> None:
    """Set limits that the kernel enforces: memory, files, no network, no program."""
    cache = cache_folder()
    with suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
    here = Path.cwd()
    hub = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    confine(
        Confinement(
            address_bytes=bytes_from_mib(memory_mib),
            file_bytes=bytes_from_mib(_LARGEST_FILE_MIB),
            readable=[str(here), str(cache), str(hub), *([folder] if folder else [])],
            writable=[str(here), str(cache)],
        )
    )


def warm() -> None:
    """Import and load now what the first call would otherwise wait for."""
    import onnx

    from foretell.predictors import find_predictor
    from foretell.web.mcp import answers

    del onnx, answers
    find_predictor(None, "h200")


def reply(message: Message) -> Message:
    """The answer to a call, or one line that says why there is none."""
    from foretell.web.mcp.answers import answer

    try:
        return {"text": answer(message["tool"], message["fields"])}
    except ForetellError as error:
        return {"error": str(error)}
    except MemoryError:  # tainted: the pool replaces this process, since a library may be left in a bad state
        return {"error": "The model needs more memory than a call may take here.", "tainted": True}
    except Exception as error:  # noqa: BLE001 - a bug of ours: the agent gets one line, too
        return {"error": f"Internal error ({short(error)}). Please report it."}


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
