"""Profiling: a model in ONNX Runtime on the host's processor, as a step that the CPU runtime can time."""

import json
import re
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretell.errors import InputError, ModelError
from foretell.optional import require
from foretell.profiling.fusion.onnx_runtime import cache_registry
from foretell.profiling.source import Source
from foretell.profiling.steps import Step
from foretell.profiling.trackers.kernels import KernelTable
from foretell.profiling.workload import Workload
from foretell.registry import did_you_mean

_NUMPY = {
    "tensor(float)": "float32", "tensor(float16)": "float16", "tensor(double)": "float64", "tensor(int64)": "int64",
    "tensor(int32)": "int32", "tensor(bool)": "bool", "tensor(uint8)": "uint8", "tensor(int8)": "int8",
}  # fmt: skip
_DTYPES = {"tensor(float)": "fp32", "tensor(float16)": "fp16", "tensor(bfloat16)": "bf16"}
_START = re.compile(r"^\[ONNXRuntimeError\] : \d+ : ")
_KERNEL = "_kernel_time"
_TRACED_RUNS = 6

Values = dict[str, Any]


@dataclass(frozen=True)
class SessionStep(Step):
    """A step that runs a session over the file at ``path``."""

    path: str = ""
    feeds: Any = None
    threads: int = 1


def make_session_step(
    source: Source, workload: Workload, folder: Path, threads: int, close: Callable[[], None] = lambda: None
) -> SessionStep:
    """A session over the model's ONNX file, or over the ONNX form of a torch module, which is written to ``folder``.

    ``close`` is called when the step is not needed any more.
    """
    if workload.mode != "inference":
        raise InputError(f"ONNX Runtime measures inference here, not {workload.mode}.")
    path = source.onnx_file or _export(source, workload, folder)
    session = _session(path, threads)
    feeds = {entry.name: _feed(entry, source.feeds.get(entry.name, entry.shape)) for entry in session.get_inputs()}
    return SessionStep(lambda: session.run(None, feeds), close, path, feeds, threads)


def input_shapes(
    path: str, workload: Workload, requested: Mapping[str | None, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """The shapes of a file's inputs; open dimensions are filled with the batch and the ``requested`` shapes by name.

    A shape under the name None is used for every input that has no shape of its own in ``requested``.
    """
    inputs = _session(path, 1).get_inputs()
    names = [entry.name for entry in inputs]
    file = Path(path).name
    for name in requested:
        if name is not None and name not in names:
            raise InputError(f"{file} has no input {name!r}.{did_you_mean(name, names)}")
    kinds = {_DTYPES[entry.type] for entry in inputs if entry.type in _DTYPES}
    if kinds and workload.dtype not in kinds:
        right = " or ".join(sorted(kinds))
        raise InputError(f"{file} computes in {right}: use --dtype {right}, not {workload.dtype}.")
    return {
        entry.name: _fitted(entry, file, workload, requested.get(entry.name, requested.get(None))) for entry in inputs
    }


def _fitted(entry: Any, file: str, workload: Workload, requested: tuple[int, ...] | None) -> tuple[int, ...]:
    """The shape of one input: the batch in an open first dimension, the requested shape in the others."""
    shape = list(entry.shape)
    if shape and not isinstance(shape[0], int):
        shape[0] = workload.batch_size
    elif shape and shape[0] != workload.batch_size:
        raise InputError(f"The batch of {file} is fixed to {shape[0]}: use --batch-size {shape[0]}.")
    sizes = "x".join(map(str, entry.shape))
    if requested is not None and shape:
        fits = len(requested) == len(shape) - 1 and all(
            own in (size, None) or isinstance(own, str) for own, size in zip(shape[1:], requested)
        )
        if not fits:
            text = "x".join(map(str, requested))
            raise InputError(f"The input {entry.name!r} is {sizes}, which {text} (without the batch) does not fit.")
        shape[1:] = requested
    if any(not isinstance(size, int) for size in shape):
        raise InputError(
            f"The input {entry.name!r} is open ({sizes}). Give its shape without the batch: --input {entry.name}=…"
        )
    return tuple(shape)


def _session(path: str, threads: int, profile: Path | None = None) -> Any:
    runtime = require("onnxruntime", extra="profile", purpose="Running ONNX models")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if profile is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile)
    try:
        return runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the errors of ONNX Runtime have no common base class
        name, reason = Path(path).name, " ".join(str(error).split())
        if "External data path" in reason:
            raise ModelError(
                f"The weights of {name} are in another file, which is missing. "
                "Predicting does not need it, but running does. Put it beside the model."
            ) from error
        raise ModelError(f"ONNX Runtime cannot load {name}: {_START.sub('', reason)}") from error


def _export(source: Source, workload: Workload, folder: Path) -> str:
    import torch

    from foretell.profiling.steps import weight_dtype

    if source.built is None:
        raise InputError(f"{workload.spec} has no module to convert.")
    require("onnxscript", extra="profile", purpose="Converting torch models to ONNX")
    from foretell.profiling.skeleton import Weights

    dtype = weight_dtype(workload)
    Weights(source.built.model, cast_buffers=source.built.cast_buffers).place("cpu", dtype)
    inputs = source.built.make_inputs(workload, "cpu", dtype)
    path = folder / "model.onnx"
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            source.built.model.eval(), inputs.args, str(path), kwargs=dict(inputs.kwargs), dynamo=True, verbose=False
        )
    return str(path)


def load_converter() -> None:
    """Import all that a conversion needs, by converting one layer: processes that are forked later have it loaded."""
    import torch

    require("onnxscript", extra="profile", purpose="Converting torch models to ONNX")
    require("onnxruntime", extra="profile", purpose="Running ONNX models")
    cache_registry()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(torch.nn.Linear(2, 2).eval(), (torch.ones(1, 2),), dynamo=True, verbose=False)


def _feed(entry: Any, shape: Sequence[int]) -> Any:
    """Random values for one input."""
    import numpy

    kind = _NUMPY.get(entry.type)
    if kind is None:
        raise InputError(f"The input {entry.name!r} is a {entry.type}, which foretell cannot make.")
    draw = numpy.random.default_rng(0)
    if kind.startswith(("int", "uint")):
        return draw.integers(0, 2, shape).astype(kind)
    return draw.random(shape) > 0.5 if kind == "bool" else draw.standard_normal(shape).astype(kind)


def trace_session(step: SessionStep, folder: Path) -> Values:
    """The nodes of a run as a kernel table, timed by ONNX Runtime's profiler in a separate session."""
    session = _session(step.path, step.threads, folder / "onnxruntime")
    for _ in range(_TRACED_RUNS):
        session.run(None, step.feeds)
    return parse_profile(json.loads(Path(session.end_profiling()).read_text(encoding="utf-8")), _TRACED_RUNS)


def parse_profile(events: Sequence[Mapping[str, Any]], runs: int) -> Values:
    """The nodes of ``runs`` equal runs of a profile, each with the median of its times; the first run warms up."""
    kernels = [event for event in events if event.get("cat") == "Node" and str(event["name"]).endswith(_KERNEL)]
    nodes = len(kernels) // runs
    table = KernelTable()
    for number, event in enumerate(kernels[len(kernels) - nodes :]):
        operator = str(event["args"].get("op_name", ""))
        times = [float(kernels[run * nodes + number]["dur"]) for run in range(1 if runs > 1 else 0, runs)]
        table.name.append(str(event["name"]).removesuffix(_KERNEL))
        table.duration_us.append(statistics.median(times))
        table.hidden_us.append(0.0)
        table.grid.append([])
        table.block.append([])
        table.registers.append(0)
        table.shared_bytes.append(0)
        table.occupancy_pct.append(0.0)
        table.op_index.append(number)
        table.op.append(operator)
        table.leaf_op.append(operator)
        table.module.append("")
    return table.to_json()
