"""Web: the process that reads models: one question a line in, one answer a line out; killed where it takes too much.

server → worker    {"kind": "predict", "fields": {...}, "files": {"model": "/private/…/net.onnx"}}
worker → server    {"event": "ready"}
                   {"text": "…"}                       the answer
                   {"error": "…", "status": 422}       why there is none
"""

import json
import os
import resource
import sys
from typing import Any

from foretell.errors import ForetellError
from foretell.optional import available, require
from foretell.processes.child import die_with_parent, redirect_output, short
from foretell.units import bytes_from_mib
from foretell.web.answers import answer
from foretell.web.refusals import BrokenError, status_of

_LARGEST_FILE_MIB = 256  # a kept graph is far smaller

Message = dict[str, Any]


def main(memory_mib: float) -> None:
    """Answer until the server closes the line."""
    die_with_parent()
    send = redirect_output()
    limit(memory_mib)
    warm()
    send({"event": "ready"})
    for line in sys.stdin.buffer:
        send(reply(json.loads(line)))


def limit(memory_mib: float) -> None:
    """Let the kernel refuse what would be too much; nobody else reads what this process writes."""
    os.umask(0o077)
    for what, most in (
        (resource.RLIMIT_AS, bytes_from_mib(memory_mib)),
        (resource.RLIMIT_FSIZE, bytes_from_mib(_LARGEST_FILE_MIB)),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))


def warm() -> None:
    """Load what the first question would wait for."""
    import onnx

    from foretell.predictors import find_predictor

    del onnx
    if available("onnxruntime"):
        require("onnxruntime", extra="web")
    find_predictor(None, "h200")


def reply(message: Message) -> Message:
    """The answer to a question, or one line that says why there is none."""
    try:
        return {"text": answer(message["kind"], message["fields"], message["files"])}
    except ForetellError as error:
        return {"error": str(error), "status": status_of(error)}
    except MemoryError:
        return {"error": "The model needs more memory than a request may take here.", "status": 422, "tainted": True}
    except Exception as error:  # noqa: BLE001 - a bug of ours, still one line
        return {"error": f"Internal error ({short(error)}). Please report it.", "status": BrokenError.status}


if __name__ == "__main__":
    main(float(sys.argv[1]))
