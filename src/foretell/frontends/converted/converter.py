"""Frontends: runs the converter of another framework in a child process with limits; the result is an ONNX model.

The child gets a private folder with its task, and writes ``model.onnx`` and ``result.json`` there. Its whole process
group is killed when it is done, when it takes too long or too much memory, or when foretell is interrupted. Nothing
stays behind. The worker confines itself (``processes/confine.py``), unless the user trusts the model.
"""

import hashlib
import json
import os
import selectors
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from foretell.errors import (
    ForetellError,
    InputError,
    MissingExtraError,
    ModelError,
    UnsupportedOperatorError,
    UntrustedModelError,
)
from foretell.frontends.budget import Budget, check_size, parse_json
from foretell.frontends.cache import NORMALISER_VERSION
from foretell.frontends.caged import read_caged
from foretell.frontends.converted.environments import Environment, need_environment, user_base
from foretell.frontends.normalise.pipeline import mark_buffers, normalise_converted
from foretell.frontends.onnx.file import graph_from_proto
from foretell.frontends.onnx.frontend import is_plain
from foretell.frontends.request import ModelRequest, refuse_whole
from foretell.graph import Graph
from foretell.processes.limits import DEFAULT_MEMORY_GIB, DEFAULT_TIMEOUT_S
from foretell.processes.parent import describe_exit, end, group_bytes, last_line
from foretell.units import MIB, bytes_from_gib, bytes_from_mib, mib

if TYPE_CHECKING:
    from onnx import ModelProto

WORKER = Path(__file__).with_name("converter_worker.py")
TIMEOUT = "FORETELL_CONVERTER_TIMEOUT_S"
MEMORY = "FORETELL_CONVERTER_MEMORY_MIB"
MAX_RESULT_BYTES = 512 * MIB  # the model that a worker writes has no weights
MAX_REPORT_BYTES = 16 * MIB  # what it says about it
_POLL_S = 0.1  # between two checks of the child's memory
_TAIL_BYTES = 8000  # of the child's output that are kept for an error message
_KINDS: Mapping[str, type[ForetellError]] = {
    "model": ModelError,
    "input": InputError,
    "untrusted": UntrustedModelError,
    "operator": UnsupportedOperatorError,
    "missing": MissingExtraError,
}
Task = dict[str, Any]


@dataclass(frozen=True)
class Bounds:
    """The limits of a conversion."""

    timeout_s: float = DEFAULT_TIMEOUT_S
    memory_mib: float = mib(bytes_from_gib(DEFAULT_MEMORY_GIB))


@dataclass(frozen=True)
class Converted:
    """A converted model. Its large weights have shapes but no data; ``buffers`` names those that are not trained."""

    proto: "ModelProto"
    buffers: frozenset[str] = frozenset()


def read_bounds(task: Task | None = None) -> Bounds:
    """The limits that the user gave for a task, else those of environment variables, else the defaults."""
    timeout_s, memory_gib = (task or {}).get("timeout_s"), (task or {}).get("memory_limit_gib")
    return Bounds(
        _number(TIMEOUT, DEFAULT_TIMEOUT_S) if timeout_s is None else timeout_s,
        _number(MEMORY, Bounds.memory_mib) if memory_gib is None else mib(bytes_from_gib(memory_gib)),
    )


def _number(variable: str, default: float) -> float:
    """A positive number from an environment variable."""
    text = os.environ.get(variable, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise InputError(f"{variable} is {text!r}; it must be a number above 0.")
    return value


@contextmanager
def private_folder() -> Iterator[Path]:
    """A folder that only this user can read. It is deleted afterwards, even if the program is terminated."""
    with _sigterm_as_exception(), tempfile.TemporaryDirectory(prefix="foretell-convert-") as folder:
        yield Path(folder)


def run_converter(
    framework: str,
    name: str,
    purpose: str,
    task: Task,
    request: ModelRequest,
    *,
    folder: Path | None = None,
    environment: Environment | None = None,
) -> Graph:
    """Convert the model that ``task`` describes with the converter of ``framework``; returns its graph.

    Args:
        framework: The framework whose environment is used.
        name: The name of the model in messages.
        purpose: What the framework is needed for, such as "Reading Keras models".
        task: The task that the worker reads; see ``converter_worker.py``.
        request: The options for reading what it wrote.
        folder: A private folder that already contains the model.
        environment: The Python that converts, if it is not the default one of the framework.
    """
    if folder is None:
        with private_folder() as new_folder:
            return run_converter(framework, name, purpose, task, request, folder=new_folder, environment=environment)
    environment = environment or need_environment(framework, purpose)
    (folder / "task.json").write_text(json.dumps(task), encoding="utf-8")
    command = (*environment.command, str(WORKER), str(folder))
    run_bounded(command, folder, name, read_bounds(task), own_home=not task.get("trust"))
    return _collect(folder, name, request)


def run_bounded(command: Sequence[str], folder: Path, name: str, bounds: Bounds, *, own_home: bool = True) -> None:
    """Run a command that works in ``folder``; raise an error of one line if it dies or exceeds its limits."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=_variables(folder, own_home),
            process_group=0,
        )
    except OSError as error:
        raise ModelError(f"Cannot start the converter {command[0]}: {error.strerror or error}.") from error
    try:
        tail = _watch(process, name, bounds)
    finally:
        end(process)
    code = process.returncode
    # a library may crash at exit, after the result is complete
    if code == 0 or (folder / "result.json").exists():
        return
    last = last_line(tail)
    message = f" Its last line: {last[:200]}" if last else ""
    if code == -signal.SIGKILL:
        raise ModelError(f"The converter of {name} was killed: most likely the machine ran out of memory.")
    raise ModelError(f"The converter of {name} {describe_exit(code)}.{message}")


def _variables(folder: Path, own_home: bool) -> dict[str, str]:
    """The child's environment variables: one thread, no GPU, no automatic installation, caches in its own folder."""
    variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONSTARTUP")}
    if "PYTHONPATH" in os.environ:  # a separate environment ignores it (-I); the running Python needs it
        variables["PYTHONPATH"] = os.environ["PYTHONPATH"]
    variables |= {
        "TMPDIR": str(folder),
        "KERAS_HOME": str(folder),
        "XDG_CACHE_HOME": str(folder),
        "KERAS_BACKEND": "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
        "JAX_PLATFORMS": "cpu",
        "OMP_NUM_THREADS": "1",
        "TF_NUM_INTRAOP_THREADS": "1",
        "POLYGRAPHY_AUTOINSTALL_DEPS": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUSERBASE": user_base(),
    }
    if own_home:
        variables["HOME"] = str(folder)
    return variables


def _watch(process: "subprocess.Popen[bytes]", name: str, bounds: Bounds) -> bytes:
    """Wait for the child within its limits; returns the end of its output."""
    assert process.stdout is not None
    deadline, tail = time.monotonic() + bounds.timeout_s, b""
    os.set_blocking(process.stdout.fileno(), False)
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while process.poll() is None:
            if not selector.get_map():  # the child has closed its output but still runs
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL_S)
            elif selector.select(_POLL_S):
                output = _read(process.stdout)
                if output == b"":
                    selector.unregister(process.stdout)
                tail = (tail + (output or b""))[-_TAIL_BYTES:]
            if time.monotonic() > deadline:
                raise ModelError(
                    f"Converting {name} took longer than {bounds.timeout_s:g} s and was stopped. "
                    f"If you trust it, give --timeout or set {TIMEOUT}."
                )
            if group_bytes(process.pid) > bytes_from_mib(bounds.memory_mib):
                raise ModelError(
                    f"Converting {name} took more than {bounds.memory_mib:g} MiB of memory and was stopped. "
                    f"If you trust it, give --memory-limit (in GiB) or set {MEMORY}."
                )
    return (tail + (_read(process.stdout) or b""))[-_TAIL_BYTES:]


def _read(pipe: IO[bytes]) -> bytes | None:
    """Read what is available now; b"" at the end of the stream, None if nothing is available."""
    try:
        return os.read(pipe.fileno(), 1 << 16)
    except BlockingIOError:
        return None


@contextmanager
def _sigterm_as_exception() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that the child is killed and the folder deleted before the program ends.

    A handler that the program has set itself is left alone, and signals can be handled only in the main thread.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _collect(folder: Path, name: str, request: ModelRequest) -> Graph:
    """Read the result of the child: as any ONNX file, one that is not plain in a cage. Raise the error that it reports.

    Nothing that the child wrote is believed: the converter runs native parsers, and the code of trusted models.
    """
    try:
        result = parse_json(_read_file(folder / "result.json"), Budget(name))
        error, buffers = result.get("error"), sorted(map(str, result.get("buffers", ())))
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as problem:
        raise ModelError(f"The converter of {name} finished without a result.") from problem
    if error:
        raise _KINDS.get(str(result.get("kind")), ModelError)(f"{name}: {error}")
    path = folder / "model.onnx"
    if path.is_symlink() or not path.is_file():
        raise ModelError(f"The converter of {name} wrote no ONNX model.")
    check_size(path, MAX_RESULT_BYTES, "a converted model")
    request = request.with_source({"path": str(path), "name": name, "buffers": buffers})
    if is_plain(path) and not request.has_limits:
        return read_converted(request)
    return read_caged("foretell.frontends.converted.converter:read_converted", request, name, (path,))


def read_converted(request: ModelRequest) -> Graph:
    """Read a model that a converter wrote; in a cage if it is not plain."""
    from google.protobuf.message import DecodeError
    from onnx import ModelProto

    path, name, buffers = (request.source[key] for key in ("path", "name", "buffers"))
    proto = ModelProto()
    try:
        proto.ParseFromString(Path(path).read_bytes())
    except (OSError, DecodeError) as problem:
        raise ModelError(f"The converter of {name} wrote no ONNX model.") from problem
    if not proto.HasField("graph"):
        raise ModelError(f"The converter of {name} wrote no ONNX model.")
    return graph_from_converted(Converted(proto, frozenset(buffers)), request, name)


def _read_file(path: Path) -> bytes:
    """The content of a small file that the child wrote; a link that it made is not followed."""
    with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)), "rb") as file:
        content = file.read(MAX_REPORT_BYTES + 1)
    if len(content) > MAX_REPORT_BYTES:
        raise OSError(f"{path.name} is too large")
    return content


def task_of(request: ModelRequest, worker: str, kind: str, path: Path) -> Task:
    """Return the task of a worker."""
    refuse_whole(request, "Converted models take inputs")
    return {
        "worker": worker,
        "format": kind,
        "path": str(path.resolve()),
        "inputs": [[spec.name, list(spec.shape), spec.dtype] for spec in request.inputs],
        "trust": request.trust,
        "memory_limit_gib": request.memory_limit_gib,
        "timeout_s": request.timeout_s,
    }


def digest_files(path: Path, names: Iterable[Path] = ()) -> str:
    """Return a hash of the content of a file, of all files of a folder, or of the files ``names``."""
    files = sorted(names) or (sorted(f for f in path.rglob("*") if f.is_file()) if path.is_dir() else [path])
    digest = hashlib.sha256(str(NORMALISER_VERSION).encode())
    try:
        for source in files:
            digest.update(source.name.encode(errors="replace"))
            with source.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    except OSError as error:
        raise ModelError(f"Cannot read {error.filename or path}: {error.strerror or error}.") from error
    return digest.hexdigest()


def graph_from_converted(converted: Converted, request: ModelRequest, name: str) -> Graph:
    """Return the graph of a converted model: read as ONNX, then normalised."""
    graph = graph_from_proto(converted.proto, request, name)
    return normalise_converted(mark_buffers(graph, converted.buffers))
