"""Frontends: reads somebody's file in a cage; only a graph comes back, which is checked.

``python -m foretell.frontends.caged`` is the child. It gets the name of a function of a front-end and a request, and
answers with a graph as JSON, or with an error:

    {"graph": "…"} or {"error": "ModelError", "message": "one line"}
"""

import importlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from foretell.errors import (
    ForetellError,
    GraphError,
    InputError,
    MissingExtraError,
    ModelError,
    UnsupportedOperatorError,
    UntrustedModelError,
)
from foretell.frontends.request import InputSpec, ModelRequest
from foretell.graph import Graph
from foretell.graph.ir import serde
from foretell.processes.cage import end_out_of_memory, enter, run_caged
from foretell.processes.child import Message
from foretell.processes.confine import confined

_ERRORS: dict[str, type[ForetellError]] = {
    error.__name__: error
    for error in (GraphError, InputError, MissingExtraError, ModelError, UnsupportedOperatorError, UntrustedModelError)
}
_ROOM = "foretell.frontends."
_MAX_MESSAGE = 2000  # characters: a message may quote a name from inside a file
# what libraries say when they get no memory; PyTorch raises RuntimeError
_NO_MEMORY = (
    "not enough memory",
    "can't allocate memory",
    "cannot allocate memory",
    "bad_alloc",
    "failed to map segment",
)


def read_caged(reader: str, request: ModelRequest, name: str | None = None, files: Sequence[Path] = ()) -> Graph:
    """Call ``reader``, a function "module:name" of a front-end, on a request; it returns a graph.

    A process that is confined already, such as a worker of the server, calls it itself.

    Args:
        reader: The function, which gets the request.
        request: Its source is a path, which the child may read, or a JSON object.
        name: The model in messages; by default the name of the file.
        files: What else the child may read.
    """
    if confined():
        return call_reader(reader, request)
    if isinstance(request.source, str):
        path = Path(request.source).absolute()
        request, name, files = replace(request, source=str(path)), name or path.name, (path, *files)
    assert name is not None
    task = {"reader": reader, "request": _packed(request), "name": name}
    answer = run_caged("foretell.frontends.caged", task, name, request.limits, files)
    # whoever takes over the child can send anything: nothing here is believed
    try:
        reply = json.loads(answer)
        kind, message, document = reply.get("error"), reply.get("message"), reply.get("graph")
    except (ValueError, AttributeError, RecursionError) as error:
        raise ModelError(f"The process that read {name} gave no answer.") from error
    if kind is not None:
        raise _ERRORS.get(str(kind), ModelError)(str(message)[:_MAX_MESSAGE])
    try:
        return serde.from_document(str(document))
    except GraphError as error:
        raise ModelError(f"The process that read {name} returned no graph.") from error


def _packed(request: ModelRequest) -> Message:
    """A request as JSON values."""
    inputs = [[spec.name, list(spec.shape), spec.dtype, spec.whole] for spec in request.inputs]
    names = ("source", "mode", "dtype", "context", "trust", "allow_unknown", "as_written")
    return {"inputs": inputs, **{name: getattr(request, name) for name in names}}


def _unpacked(values: Message) -> ModelRequest:
    inputs = tuple(InputSpec(name, tuple(shape), dtype, whole) for name, shape, dtype, whole in values.pop("inputs"))
    return ModelRequest(inputs=inputs, **values)


def call_reader(reader: str, request: ModelRequest) -> Graph:
    """Call a function "module:name" of a front-end here."""
    module, _, name = reader.partition(":")
    assert module.startswith(_ROOM)
    function: Callable[[ModelRequest], Graph] = getattr(importlib.import_module(module), name)
    return function(request)


def answer_to(task: Message) -> bytes:
    """In the child: the answer to a task."""
    name = task["name"]
    try:
        graph = call_reader(task["reader"], _unpacked(task["request"]))
        reply = {"graph": serde.to_document(graph)}
    except MemoryError:
        end_out_of_memory()
    except ForetellError as error:
        if any(text in str(error) for text in _NO_MEMORY):
            end_out_of_memory()
        reply = {"error": type(error).__name__, "message": str(error)}
    except Exception as error:  # noqa: BLE001 - a library may raise anything
        reason = " ".join(str(error).split())[:200]
        if any(text in reason for text in _NO_MEMORY):
            end_out_of_memory()
        reply = {"error": "ModelError", "message": f"{name} cannot be read: {type(error).__name__}: {reason}"}
    return json.dumps(reply).encode()


def main() -> None:
    """Run in the child."""
    task, send = enter()
    send(answer_to(task))


if __name__ == "__main__":
    main()
