"""Workflows: a child process that compiles models one by one and reports which operators were fused.

Only this module needs both the compilers (profiling) and the front-ends: compilers label operators by their names in
the exported program, and the records store the labels by position in the graph.
"""

import gc
import json
import os
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretell.errors import MeasurementError
from foretell.frontends.onnx.file import graph_from_proto
from foretell.frontends.request import ModelRequest
from foretell.frontends.torch.export import graph_from_exported
from foretell.graph import Graph
from foretell.graph.ir.serde import MAGIC, to_bytes
from foretell.optional import versions
from foretell.processes.child import (
    Message,
    configure_libraries,
    die_with_parent,
    redirect_output,
    stop_garbage_collection,
)
from foretell.processes.parent import resident_bytes
from foretell.profiling.campaign.schedule import group_from_json
from foretell.profiling.fusion.kernels import Compiled, label_graph
from foretell.profiling.workload import Workload
from foretell.profiling.zoos.registry import build, preload
from foretell.units import GIB

_MAX_ERROR_CHARACTERS = 300
# Compilers cache what they have compiled. A new process is cheaper than finding and clearing all these caches.
MODELS_A_PROCESS = 40
_MAX_RESIDENT_BYTES = 8 * GIB


@dataclass(frozen=True)
class Answer:
    """The result for one model: a row of ``fusion_graphs``, and its nodes and edges if it was compiled."""

    status: str
    values: Message
    details: Message | None = None


def compile_inductor(workload: Workload, device: str, max_parameters: float) -> tuple[Graph, Compiled, float]:
    """The graph of a model, what Inductor makes of it, and the seconds that the compiler took."""
    from foretell.profiling.fusion import inductor

    built = _build(workload, max_parameters)
    exported = _stage("export", lambda: inductor.export(built, workload, device))
    graph = _stage(
        "export",
        lambda: graph_from_exported(exported, name=workload.spec, batch_size=workload.batch_size, batch_axes={}),
    )
    began = time.perf_counter()
    return graph, inductor.compile_exported(exported), time.perf_counter() - began


def compile_onnxruntime(
    workload: Workload,
    device: str,  # noqa: ARG001 all compilers have the same signature
    max_parameters: float,
) -> tuple[Graph, Compiled, float]:
    """The graph of a model's ONNX export, and what ONNX Runtime makes of it on a CPU, whatever the ``device``."""
    from foretell.profiling.fusion import onnx_runtime as onnxruntime

    built = _build(workload, max_parameters)
    with tempfile.TemporaryDirectory(prefix="foretell-") as name:
        folder = Path(name)
        proto = _stage("export", lambda: onnxruntime.export(built, workload, folder))
        graph = _stage("export", lambda: graph_from_proto(proto, ModelRequest(proto), workload.spec))
        began = time.perf_counter()
        return graph, onnxruntime.compile_file(folder), time.perf_counter() - began


COMPILERS: dict[str, Callable[[Workload, str, float], tuple[Graph, Compiled, float]]] = {
    "inductor": compile_inductor,
    "onnxruntime": compile_onnxruntime,
}


def backend_version(backend: str, device: str) -> str:
    """The version of the compiler, for the records."""
    if backend == "onnxruntime":
        from foretell.profiling.fusion.onnx_runtime import LEVEL

        return f"{versions('onnxruntime', extra='profile')} {LEVEL} cpu, {versions('torch', extra='torch')}"
    return f"{versions('torch', extra='torch')} {device}"


class _BuildError(MeasurementError):
    """The model could not be built or exported."""


class _TooLargeError(MeasurementError):
    """The model exceeds the limits of the plan."""


def _build(workload: Workload, max_parameters: float) -> Any:
    built = _stage("build", lambda: build(workload.spec))
    count = sum(parameter.numel() for parameter in built.model.parameters())
    if count > max_parameters:
        raise _TooLargeError(f"The model has {count} parameters; the plan allows {max_parameters:.0f}.")
    return built


def _stage(name: str, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except MemoryError:
        raise
    except Exception as error:
        raise _BuildError(f"{name}: {_one_line(error)}") from error


def answer(backend: str, workload: Workload, device: str, max_parameters: float) -> Answer:
    """Compile one model; an error becomes the status of the answer."""
    version = {"backend_version": backend_version(backend, device)}
    try:
        graph, compiled, compile_s = COMPILERS[backend](workload, device, max_parameters)
        labels = label_graph(graph, compiled)
    except _TooLargeError as error:
        return Answer("skipped", version | {"error": str(error)})
    except _BuildError as error:
        return Answer("build_error", version | {"error": str(error)[:_MAX_ERROR_CHARACTERS]})
    except MemoryError as error:
        return Answer("oom", version | {"error": _one_line(error)})
    except Exception as error:  # noqa: BLE001 a compiler that refuses a model is a result worth recording
        return Answer("run_error", version | {"error": _one_line(error)})
    if not labels.kernel_count:
        return Answer("run_error", version | {"error": "No node could be matched with a kernel."})
    values: Message = version | {"graph_hash": graph.hash, "nodes": len(graph.nodes), "groups": labels.kernel_count}
    values |= {"edges": len(labels.fused), "fused_edges": sum(labels.fused), "compile_s": round(compile_s, 3)}
    nodes = {"name": [node.name for node in graph.nodes], "op_type": [node.op for node in graph.nodes]}
    details: Message = {"nodes": nodes | {"group": labels.groups, "kernel": labels.kernels}}
    details["edges"] = {"source": labels.sources, "target": labels.targets, "fused": labels.fused}
    details |= {"graph_hash": graph.hash, "parameters": graph.parameter_count, "graph": document_of(graph)}
    details["torch"] = versions("torch", extra="torch").removeprefix("torch ")
    return Answer("ok", values, details)


def document_of(graph: Graph) -> Message:
    """The JSON inside a graph file."""
    document: Message = json.loads(zlib.decompress(to_bytes(graph)[len(MAGIC) :]))
    return document


def _one_line(error: BaseException) -> str:
    """The innermost error in one line: exporters wrap it in pages of advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:_MAX_ERROR_CHARACTERS]


def main(arguments: list[str]) -> int:
    """Serve one campaign: settings as JSON in the only argument, groups on standard input."""
    die_with_parent()
    settings = json.loads(arguments[0])
    configure_libraries(Path(settings["folder"]))
    send = redirect_output()
    preload(settings["preload"])
    stop_garbage_collection()  # compilers make millions of small objects; one collection after each model is enough
    send({"event": "ready", "pid": os.getpid()})
    for number, line in enumerate(sys.stdin, start=1):
        group, _ = group_from_json(json.loads(line)["group"])
        for workload in group.workloads:
            send({"event": "begin", "id": workload.id})
            result = answer(group.role, workload, settings["device"], settings["max_parameters"])
            record = {"event": "record", "id": workload.id, "status": result.status, "values": result.values}
            send(record | {"details": result.details})
        gc.collect()
        last = number >= MODELS_A_PROCESS or resident_bytes() > _MAX_RESIDENT_BYTES
        send({"event": "done", "last": last})
        if last:
            break
    os._exit(0)  # at once: threads and files that compilers leave behind need no clean-up


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
