"""Frontends: reads ``net.py:build`` if the function returns a model of Keras, Paddle or JAX."""

from pathlib import Path

from foretell.errors import ModelError, UntrustedModelError
from foretell.frontends.converted.converter import digest_files, run_converter, task_of
from foretell.frontends.converted.environments import need_environment
from foretell.frontends.request import ModelRequest
from foretell.graph import Graph

MAX_FILES = 500  # a folder with more Python files is not fingerprinted, so its models are not cached


def is_python(source: str) -> bool:
    """Whether a source is ``net.py:build``."""
    path, _, function = source.rpartition(":")
    return path.endswith(".py") and function.isidentifier()


def load_python(request: ModelRequest, worker: str, purpose: str) -> Graph:
    """Build the model and convert it, both in a child process with the framework. This runs the user's code."""
    path, function = _parts(request)
    if not request.trust:
        raise UntrustedModelError(
            f"Reading {request.source} runs the code in {path.name}. If you trust it, add --trust."
        )
    task = task_of(request, worker, "python", path) | {"function": function}
    name = f"{path.name}:{function}"
    return run_converter(worker, name, purpose, task, request)


def fingerprint_python(request: ModelRequest, worker: str, purpose: str) -> str | None:
    """Return the content of all Python files of the folder, because the model may import its neighbours."""
    path, _ = _parts(request)
    files = sorted(path.parent.glob("*.py")) + sorted(path.parent.glob("*/*.py"))
    if not request.trust or len(files) > MAX_FILES:
        return None
    return f"{request.source} {digest_files(path, files)} {need_environment(worker, purpose).versions}"


def _parts(request: ModelRequest) -> tuple[Path, str]:
    path, _, function = str(request.source).rpartition(":")
    if not Path(path).is_file():
        raise ModelError(f"There is no file {path!r}.")
    return Path(path), function
