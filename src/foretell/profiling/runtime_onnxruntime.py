"""Profiling: a model in ONNX Runtime on the host's processor, as a step that the CPU runtime can time."""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretell.errors import InputError
from foretell.optional import require
from foretell.profiling.single import Source, Values
from foretell.profiling.steps import Step
from foretell.profiling.tracker_kernels import KernelTable
from foretell.profiling.workload import Workload

_NUMPY = {
    "tensor(float)": "float32", "tensor(float16)": "float16", "tensor(double)": "float64", "tensor(int64)": "int64",
    "tensor(int32)": "int32", "tensor(bool)": "bool", "tensor(uint8)": "uint8", "tensor(int8)": "int8",
}  # fmt: skip
_KERNEL = "_kernel_time"
_TRACED_RUNS = 3


@dataclass(frozen=True)
class SessionStep(Step):
    """A step that runs a session over the file at ``path``."""

    path: str = ""
    feeds: Any = None
    threads: int = 1


def make_session_step(source: Source, workload: Workload, folder: Path, threads: int) -> SessionStep:
    """A session over the model's ONNX file, or over the ONNX form of a torch module."""
    if workload.mode != "inference":
        raise InputError(f"ONNX Runtime measures inference here, not {workload.mode}.")
    path = source.onnx_file or _export(source, workload, folder)
    session = _session(path, threads)
    feeds = {each.name: _feed(each, workload, source) for each in session.get_inputs()}
    return SessionStep(lambda: session.run(None, feeds), lambda: None, path, feeds, threads)


def _session(path: str, threads: int, profile: Path | None = None) -> Any:
    runtime = require("onnxruntime", extra="profile", purpose="Running ONNX models")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if profile is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile)
    return runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


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


def _feed(given: Any, workload: Workload, source: Source) -> Any:
    """Random values for one input: the batch in its first dimension where that is open, the shape asked for behind."""
    import numpy

    kind = _NUMPY.get(given.type)
    if kind is None:
        raise InputError(f"The input {given.name!r} is a {given.type}, which foretell cannot make.")
    shape = list(given.shape)
    if shape and not isinstance(shape[0], int):
        shape[0] = workload.batch_size
    elif shape and source.onnx_file and shape[0] != workload.batch_size:
        raise InputError(
            f"The batch of {Path(source.onnx_file).name} is fixed to {shape[0]}: use --batch-size {shape[0]}."
        )
    asked = list(source.input_shape)
    if any(not isinstance(size, int) for size in shape) and len(asked) == len(shape) - 1:
        shape[1:] = asked
    if any(not isinstance(size, int) for size in shape):
        sizes = "x".join(str(size) for size in given.shape[1:])
        raise InputError(f"The input {given.name!r} is open ({sizes}). Give its shape without the batch: --input …")
    draw = numpy.random.default_rng(0)
    if kind.startswith(("int", "uint")):
        return draw.integers(0, 2, shape).astype(kind)
    return draw.random(shape) > 0.5 if kind == "bool" else draw.standard_normal(shape).astype(kind)


def trace_session(step: SessionStep, folder: Path) -> Values:
    """The nodes of one run, as ONNX Runtime times them in a session of its own, in the columns of a kernel table."""
    session = _session(step.path, step.threads, folder / "onnxruntime")
    for _ in range(_TRACED_RUNS):
        session.run(None, step.feeds)
    return parse_profile(json.loads(Path(session.end_profiling()).read_text(encoding="utf-8")), _TRACED_RUNS)


def parse_profile(events: Sequence[Mapping[str, Any]], runs: int) -> Values:
    """The last of ``runs`` equal runs of a profile."""
    kernels = [event for event in events if event.get("cat") == "Node" and str(event["name"]).endswith(_KERNEL)]
    table = KernelTable()
    for number, event in enumerate(kernels[len(kernels) - len(kernels) // runs :]):
        operator = str(event["args"].get("op_name", ""))
        table.name.append(str(event["name"]).removesuffix(_KERNEL))
        table.duration_us.append(float(event["dur"]))
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
