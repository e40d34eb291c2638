"""Web: the worker process, which reads models. It reads one question a line and writes one answer a line.

server → worker    {"kind": "predict", "fields": {...}, "files": {"model": "/private/…/3f09….onnx"}, "names": {}}
worker → server    {"event": "ready"}
                   {"text": "…"}                       the answer
                   {"error": "…", "status": 422}       why there is no answer

Questions that arrived together may come together: {"together": [question, …]} is answered by {"replies": [reply, …]}.
Every answer says how many models were read for it ("read"), because libraries that read models may leak memory.
"""

import gc
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from foretell.errors import ForetellError
from foretell.frontends.cache import cache_folder
from foretell.optional import available, require
from foretell.processes.child import die_with_parent, redirect_output, short
from foretell.processes.confine import Confinement, confine
from foretell.units import bytes_from_mib
from foretell.web.answers import GRAPHS, answer, answer_together
from foretell.web.refusals import BrokenError, status_of

_LARGEST_FILE_MIB = 256  # a cached graph is far smaller

Message = dict[str, Any]


def main(memory_mib: float) -> None:
    """Answer questions until the server closes standard input."""
    die_with_parent()
    send = redirect_output()
    limit(memory_mib)
    warm()
    gc.freeze()  # what was imported stays: a search for cycles would visit half a million objects in vain
    send({"event": "ready"})
    for line in sys.stdin.buffer:
        message, before = json.loads(line), GRAPHS.read
        said = {"replies": replies(message["together"])} if "together" in message else reply(message)
        send({**said, "read": GRAPHS.read - before if _is_remembered(message) else 1})
        if GRAPHS.read > before:  # a graph that stays, and perhaps a library that was imported for it
            gc.collect()
            gc.freeze()


def _is_remembered(message: Message) -> bool:
    """Whether all models of a message are read through the memory of graphs, which counts them."""
    return all(each["kind"] in ("predict", "compare", "sweep") for each in message.get("together", [message]))


def limit(memory_mib: float) -> None:
    """Set limits that the kernel enforces: memory, files, no network, no program; models are then read in here."""
    cache = cache_folder()
    with suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
    here = Path.cwd()  # an empty folder, beside those of the uploads
    hub = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    confine(
        Confinement(
            address_bytes=bytes_from_mib(memory_mib),
            file_bytes=bytes_from_mib(_LARGEST_FILE_MIB),
            readable=[str(here.parent), str(cache), str(hub)],
            writable=[str(here), str(cache)],
        )
    )


def warm() -> None:
    """Import and load now what the first question would otherwise wait for."""
    import onnx

    from foretell.predictors import find_predictor

    del onnx
    if available("onnxruntime"):
        require("onnxruntime", extra="web")
    find_predictor(None, "h200")


def replies(messages: list[Message]) -> list[Message]:
    """The answers to questions that came together; what goes wrong with all of them is looked for in each alone."""
    try:
        found = list(answer_together(messages))
    except Exception:  # noqa: BLE001 - each is asked alone, and says what is wrong with it
        return [reply(message) for message in messages]
    return [
        reply(message)
        if text is None
        else {"text": text}
        if isinstance(text, str)
        else {"error": str(text), "status": status_of(text)}
        for message, text in zip(messages, found, strict=True)
    ]


def reply(message: Message) -> Message:
    """The answer to a question, or one line that says why there is no answer."""
    try:
        return {"text": answer(message["kind"], message["fields"], message["files"], message.get("names"))}
    except ForetellError as error:
        return {"error": str(error), "status": status_of(error)}
    except MemoryError:  # tainted: the pool replaces this process, since a library may be left in a bad state
        return {"error": "The model needs more memory than a request may take here.", "status": 422, "tainted": True}
    except Exception as error:  # noqa: BLE001 - a bug of ours: the client gets one line, too
        return {"error": f"Internal error ({short(error)}). Please report it.", "status": BrokenError.status}


if __name__ == "__main__":
    main(float(sys.argv[1]))
