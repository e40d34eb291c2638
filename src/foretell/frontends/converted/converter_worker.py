"""Frontends: the child process that converts one model to ONNX with the framework's own converter.

It is started by its path, with the Python of the framework's environment, in which foretell is not installed. So this
file and the ``*_worker.py`` files beside it use only the standard library and the framework. The folder that it works
in has these files:

    task.json   → {"worker": "keras", "format": "keras", "path": "…", "inputs": [[name, shape, dtype]], "trust": false}
    model.onnx  ← the model; large weights have a shape but no data
    result.json ← {"buffers": […]} or {"kind": "model" | "input" | "untrusted" | "operator", "error": "one line"}
"""

import ctypes
import importlib
import importlib.util
import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

LARGEST_KEPT = 1024  # elements; values that decide shapes are small
LARGEST_FILE = 1 << 33
_FRAMEWORKS = {"keras": "tensorflow", "paddle": "paddle", "jax": "jax"}
_EXTERNAL = 1  # onnx.TensorProto.EXTERNAL


class Refusal(Exception):  # noqa: N818 - what is refused is the model
    """The reason why a model is not converted, in one line."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def main(folder: Path) -> int:
    """Carry out the task in ``folder``, and write the result or the error there."""
    _limit()
    task = json.loads((folder / "task.json").read_text(encoding="utf-8"))
    result: dict[str, Any]
    try:
        if not task["trust"]:
            _confine(folder, task["worker"], Path(task["path"]))
        if task["format"] == "python":
            task["built"] = _load("python_building").build(task, Refusal)
        worker = _load(f"{task['worker']}_worker")
        proto, buffers = worker.convert(task, folder, Refusal)
        strip_weights(proto.graph)
        (folder / "model.onnx").write_bytes(proto.SerializeToString())
        result = {"buffers": sorted(buffers)}
    except Refusal as refusal:
        result = {"kind": refusal.kind, "error": str(refusal)}
    except MemoryError:
        result = {"kind": "model", "error": "the machine ran out of memory while converting."}
    except Exception as error:  # noqa: BLE001 - a framework may raise anything
        result = {"kind": "model", "error": f"the converter failed: {type(error).__name__}: {one_line(error)}"}
    # renamed when complete: the parent must never read half a result
    partial = folder / "result.part"
    partial.write_text(json.dumps(result), encoding="utf-8")
    partial.rename(folder / "result.json")
    return 0


def one_line(error: BaseException) -> str:
    """Return the message of an error as one short line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:300] or "no reason given"


def strip_weights(graph: Any) -> None:
    """Remove the data of large initializers and constants, also in sub-graphs; shape and dtype stay."""
    for tensor in graph.initializer:
        _strip(tensor)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                _strip(attribute.t)
            for body in (*((attribute.g,) if attribute.HasField("g") else ()), *attribute.graphs):
                strip_weights(body)


def _strip(tensor: Any) -> None:
    """Remove the data of one tensor if it is large; the ONNX front-end needs shape and dtype only."""
    elements = 1
    for size in tensor.dims:
        elements *= size
    if elements <= LARGEST_KEPT:
        return
    for field in ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data"):
        tensor.ClearField(field)
    del tensor.external_data[:]
    tensor.data_location = _EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "weights"


def _load(name: str, folder: Path = Path(__file__).parent) -> Any:
    """Import ``<name>.py`` of a folder, by default that of this file, without a search path."""
    spec = importlib.util.spec_from_file_location(f"foretell_{name}", folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _limit() -> None:
    """Set limits: die with the parent, be killed first if memory runs out, write no huge file and no core dump."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        Path("/proc/self/oom_score_adj").write_text("300", encoding="ascii")
    with suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        most = LARGEST_FILE if hard == resource.RLIM_INFINITY else min(LARGEST_FILE, hard)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    os.umask(0o077)


def _confine(folder: Path, worker: str, model: Path) -> None:
    """Keep this process from everything but its folder and the model; a Paddle program has its weights beside it.

    Paddle starts programs when it is imported. Nobody may once the model is read.
    """
    confine = _load("confine", Path(__file__).parents[2] / "processes")
    readable = [str(path) for path in (Path(__file__).parent, folder, model, model.with_suffix(".pdiparams"))]
    limits = confine.Confinement(file_bytes=LARGEST_FILE, readable=readable, writable=[str(folder)])
    confine.confine(limits, sealed=False)
    with suppress(Exception):  # a worker says what is missing
        importlib.import_module(_FRAMEWORKS[worker])
    confine.seal(may_write=True)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
