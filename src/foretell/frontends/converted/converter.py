"""frontends: another framework's converter, run in a process of its own, within bounds; what comes back is ONNX.

The child gets a private folder with its task, writes ``model.onnx`` and ``result.json`` there, and is ended as a whole
process group: when it is done, takes too long or too much memory, or when we are interrupted. Nothing stays behind.
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
from foretell.frontends.cache import CONVERSION
from foretell.frontends.converted.environments import Environment, need_environment, user_base
from foretell.frontends.normalise.pipeline import mark_buffers, normalise_converted
from foretell.frontends.onnx.file import graph_from_proto
from foretell.frontends.request import ModelRequest
from foretell.graph import Graph
from foretell.units import bytes_from_mib

if TYPE_CHECKING:
    from onnx import ModelProto

WORKER = Path(__file__).with_name("converter_worker.py")
TIMEOUT = "FORETELL_CONVERTER_TIMEOUT_S"
MEMORY = "FORETELL_CONVERTER_MEMORY_MIB"
DEFAULT_TIMEOUT_S = 300.0
DEFAULT_MEMORY_MIB = 16384.0
_LOOK_S = 0.1  # between two looks at the child's memory
_TAIL_BYTES = 8000
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
    """What a conversion may take."""

    timeout_s: float = DEFAULT_TIMEOUT_S
    memory_mib: float = DEFAULT_MEMORY_MIB


@dataclass(frozen=True)
class Converted:
    """A converted model: weights are there by shape alone. ``buffers`` names those that are not trained."""

    proto: "ModelProto"
    buffers: frozenset[str] = frozenset()


def read_bounds() -> Bounds:
    """The bounds that the environment sets, or the usual ones."""
    return Bounds(_number(TIMEOUT, DEFAULT_TIMEOUT_S), _number(MEMORY, DEFAULT_MEMORY_MIB))


def _number(variable: str, default: float) -> float:
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
    """A folder that only we can read; it is gone afterwards, also where the program is asked to end."""
    with _ending_is_an_exception(), tempfile.TemporaryDirectory(prefix="foretell-convert-") as folder:
        yield Path(folder)


def run_converter(
    framework: str,
    name: str,
    purpose: str,
    task: Task,
    *,
    folder: Path | None = None,
    environment: Environment | None = None,
) -> Converted:
    """Convert the model that ``task`` describes with the converter of ``framework``.

    Args:
        framework: Whose environment is used.
        name: What the model is called in messages.
        purpose: What needs the framework: "Reading Keras models".
        task: What the worker reads; see ``converter_worker.py``.
        folder: A private folder that has the model in it already.
        environment: The Python that converts, where the usual choice is not the right one.
    """
    if folder is None:
        with private_folder() as made:
            return run_converter(framework, name, purpose, task, folder=made, environment=environment)
    environment = environment or need_environment(framework, purpose)
    (folder / "task.json").write_text(json.dumps(task), encoding="utf-8")
    command = (*environment.command, str(WORKER), str(folder))
    run_bounded(command, folder, name, read_bounds(), own_home=not task.get("trust"))
    return _collect(folder, name)


def run_bounded(command: Sequence[str], folder: Path, name: str, bounds: Bounds, *, own_home: bool = True) -> None:
    """Run a command that works in ``folder``; raises one clear line where it dies or takes too much."""
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
        _end(process)
    code = process.returncode
    if code == 0 or (folder / "result.json").exists():
        return
    last = tail.decode(errors="replace").strip().splitlines()[-1:] or [""]
    said = f" It said: {last[0].strip()[:200]}" if last[0].strip() else ""
    if code == -signal.SIGKILL:
        raise ModelError(f"The converter of {name} was killed: most likely the machine ran out of memory.")
    how = f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    raise ModelError(f"The converter of {name} {how}.{said}")


def _variables(folder: Path, own_home: bool) -> dict[str, str]:
    """The child's environment: one thread, no GPU, nothing installed by itself, no file outside its folder."""
    variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONSTARTUP")}
    if "PYTHONPATH" in os.environ:  # ignored by an own environment (-I), needed where the running Python converts
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
    """Wait for the child's end within its bounds; returns the end of what it said."""
    assert process.stdout is not None
    until, tail = time.monotonic() + bounds.timeout_s, b""
    os.set_blocking(process.stdout.fileno(), False)
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while process.poll() is None:
            if not selector.get_map():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_LOOK_S)
            elif selector.select(_LOOK_S):
                heard = _read(process.stdout)
                if heard == b"":
                    selector.unregister(process.stdout)
                tail = (tail + (heard or b""))[-_TAIL_BYTES:]
            if time.monotonic() > until:
                raise ModelError(
                    f"Converting {name} took longer than {bounds.timeout_s:g} s and was ended. "
                    f"Allow more by setting {TIMEOUT}."
                )
            if group_bytes(process.pid) > bytes_from_mib(bounds.memory_mib):
                raise ModelError(
                    f"Converting {name} took more than {bounds.memory_mib:g} MiB of memory and was ended. "
                    f"Allow more by setting {MEMORY}."
                )
    return (tail + (_read(process.stdout) or b""))[-_TAIL_BYTES:]


def _read(pipe: IO[bytes]) -> bytes | None:
    """What is there now; b"" at the end, None where nothing waits."""
    try:
        return os.read(pipe.fileno(), 1 << 16)
    except BlockingIOError:
        return None


def group_bytes(group: int) -> int:
    """What the processes of a group hold in memory; 0 where the system does not say.

    An address-space limit would be simpler, but TensorFlow reserves far more than it uses.
    """
    total = 0
    with suppress(OSError):
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                total += _resident_bytes(entry.name, group)
    return total


def _resident_bytes(pid: str, group: int) -> int:
    with suppress(OSError, ValueError, IndexError):
        if os.getpgid(int(pid)) == group:
            with open(f"/proc/{pid}/statm", encoding="ascii") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the child and what it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


@contextmanager
def _ending_is_an_exception() -> Iterator[None]:
    """Where SIGTERM would end the program at once, let it unwind first, so that child and folder go with it."""
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


def _collect(folder: Path, name: str) -> Converted:
    from google.protobuf.message import DecodeError
    from onnx import ModelProto

    try:
        result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        error, buffers = result.get("error"), frozenset(map(str, result.get("buffers", ())))
    except (OSError, ValueError, AttributeError, TypeError) as problem:
        raise ModelError(f"The converter of {name} ended without a result.") from problem
    if error:
        raise _KINDS.get(str(result.get("kind")), ModelError)(f"{name}: {error}")
    proto = ModelProto()
    try:
        proto.ParseFromString((folder / "model.onnx").read_bytes())
    except (OSError, DecodeError) as problem:
        raise ModelError(f"The converter of {name} wrote no ONNX model.") from problem
    if not proto.HasField("graph"):
        raise ModelError(f"The converter of {name} wrote no ONNX model.")
    return Converted(proto, buffers)


def task_of(request: ModelRequest, worker: str, kind: str, path: Path) -> Task:
    """What a worker is told."""
    return {
        "worker": worker,
        "format": kind,
        "path": str(path.resolve()),
        "inputs": [[spec.name, list(spec.shape), spec.dtype] for spec in request.inputs],
        "trust": request.trust,
    }


def digest_files(path: Path, names: Iterable[Path] = ()) -> str:
    """The content of a file, or of all files of a folder."""
    files = sorted(names) or (sorted(f for f in path.rglob("*") if f.is_file()) if path.is_dir() else [path])
    digest = hashlib.sha256(str(CONVERSION).encode())
    try:
        for each in files:
            digest.update(each.name.encode(errors="replace"))
            with each.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    except OSError as error:
        raise ModelError(f"Cannot read {error.filename or path}: {error.strerror or error}.") from error
    return digest.hexdigest()


def graph_from_converted(converted: Converted, request: ModelRequest, name: str) -> Graph:
    """The graph of a converted model: read as ONNX, then brought into the usual form."""
    graph = graph_from_proto(converted.proto, request, name)
    return normalise_converted(mark_buffers(graph, converted.buffers))
