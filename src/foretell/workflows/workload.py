"""Workflows: check the arguments of users and make a `Workload` of them.

All cheap checks come before a model is read, because reading one may take half a minute.
"""

import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from foretell.devices import Device, device_of, parse_slice
from foretell.devices.cpu_runs import ONE_THREAD, ONNX_RUNTIME
from foretell.errors import InputError
from foretell.frontends import MODES, InputSpec, ModelRequest, convert, parse_inputs
from foretell.frontends.cache import cache_folder
from foretell.frozen import dataclass
from foretell.graph import Graph, parse_dtype
from foretell.predictors import Predictor, find_predictor
from foretell.predictors.fitted_files import best_fitted
from foretell.records import TF32, Target, Workload
from foretell.registry import did_you_mean

CUDA_GRAPH, EAGER, COMPILED = "cuda-graph", "eager", "compiled"
RUNTIMES = (CUDA_GRAPH, EAGER, COMPILED, ONNX_RUNTIME)
_OLD_NAMES = {"compile": COMPILED}  # understood, but not shown
_NOT_ADAPTED = f"What foretell adapt learned is of {ONE_THREAD}; it is not used here."
MAX_BATCH = 2**20
_AUTOCAST_DTYPES = ("fp16", "bf16")
_MASTERED = ("fp8", "fp4")  # formats in which nobody keeps the weights that are trained
InputShape = str | Sequence[int] | Sequence[str] | Mapping[str, Sequence[int]] | None


@dataclass(frozen=True)
class Configuration:
    """How a model shall run, already checked: target, batch size, dtype, mode and optimizer."""

    target: Target
    batch_size: int = 1
    dtype: str = "fp32"
    mode: str = "inference"
    optimizer: str | None = None
    channels_last: bool = False

    def workload(self, graph: Graph) -> Workload:
        """The workload of a graph: at this batch size and dtype.

        Training in half precision means autocast, which keeps the weights in fp32. Then the graph is not cast.
        """
        check_batch(graph, self.batch_size)
        is_autocast = self.mode == "training" and self.dtype in _AUTOCAST_DTYPES
        ready = graph.at(self.batch_size, None if is_autocast else parse_dtype(self.dtype))
        return Workload(ready, self.target, self.dtype, self.mode, self.optimizer, self.channels_last)


def read_configuration(
    *,
    device: str | Device = "h200",
    slice: str | None = None,
    runtime: str = CUDA_GRAPH,
    batch_size: int = 1,
    dtype: str = "fp32",
    mode: str = "inference",
    optimizer: str | None = None,
    channels_last: bool = False,
    threads: int = 1,
) -> Configuration:
    """Check all arguments except the model, which is not read.

    >>> read_configuration(device="a100", batch_size=8, dtype="half").dtype
    'fp16'
    >>> read_configuration(batch_size=2.5)
    Traceback (most recent call last):
    ...
    foretell.errors.InputError: The batch size is 2.5; it must be a whole number between 1 and 1048576.
    """
    check_mode(mode)
    runtime = runtime_name(runtime)
    if runtime not in RUNTIMES:
        raise InputError(f"Unknown runtime {runtime!r}.{did_you_mean(runtime, RUNTIMES)}")
    place = device_of(device)
    part = parse_slice(slice, place) if slice else None
    _check_host(place, runtime, threads)
    # A CPU has no CUDA graphs: it runs eagerly, whatever the default runtime.
    target = Target(place, part, EAGER if place.is_cpu and runtime != ONNX_RUNTIME else runtime, threads)
    size, number = check_batch_size(batch_size), check_dtype(dtype)
    if number == TF32 and not place.is_nvidia:
        what = "a CPU" if place.is_cpu else f"a GPU of {place.vendor}"
        raise InputError(f"TF32 is a precision of NVIDIA's GPUs; {place.id} is {what}: use fp32.")
    if number in _MASTERED and mode == "training":
        raise InputError(
            f"A training step in {number} is not predicted: its master weights and optimizer stay wider, and none was "
            "measured. Use bf16 or fp16, which mean autocast."
        )
    if number == "fp64" and "fp64" not in place.vector_tflops:
        raise InputError(f"No rate in fp64 is known of {place.id} (some GPUs have none): use fp32.")
    return Configuration(target, size, number, mode, check_optimizer(optimizer, mode), channels_last)


def _check_host(device: Device, runtime: str, threads: object) -> None:
    """Refuse what only a CPU has, on a GPU; and a number of threads that is none."""
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise InputError(f"Got {threads!r} threads; it must be a whole number, 1 or more.")
    if device.is_cpu:
        return
    if runtime == ONNX_RUNTIME:
        raise InputError(f"ONNX Runtime was measured on cpu, not on {device.id}: leave out --runtime {ONNX_RUNTIME}.")
    if threads != 1:
        raise InputError(f"Threads are those of a CPU, and {device.id} is none: leave out --threads.")


def runtime_name(runtime: str) -> str:
    """Today's name of a runtime.

    >>> runtime_name("compile"), runtime_name("eager")
    ('compiled', 'eager')
    """
    return _OLD_NAMES.get(runtime, runtime)


def read_workload(
    model: Any,
    *,
    device: str | Device = "h200",
    slice: str | None = None,
    runtime: str = CUDA_GRAPH,
    batch_size: int = 1,
    dtype: str = "fp32",
    mode: str = "inference",
    optimizer: str | None = None,
    channels_last: bool = False,
    input_shape: InputShape = None,
    context: int | None = None,
    trust: bool = False,
    allow_unknown: bool = False,
    use_cache: bool = True,
    memory_limit_gib: float | None = None,
    timeout_s: float | None = None,
) -> Workload:
    """Check the arguments, read the model, and make the workload.

    >>> from foretell.testing import tiny_onnx
    >>> workload = read_workload(tiny_onnx(), device="a100", batch_size=4, dtype="fp16")
    >>> workload.batch_size, workload.dtype, workload.target.device.id
    (4, 'fp16', 'a100-sxm-40gb')
    """
    configuration = read_configuration(
        device=device, slice=slice, runtime=runtime, batch_size=batch_size, dtype=dtype, mode=mode, optimizer=optimizer,
        channels_last=channels_last,
    )  # fmt: skip
    graph = load_graph(
        model, input_shape=input_shape, batch_size=configuration.batch_size, mode=mode, context=context, trust=trust,
        allow_unknown=allow_unknown, use_cache=use_cache,
        memory_limit_gib=memory_limit_gib, timeout_s=timeout_s,
    )  # fmt: skip
    return configuration.workload(graph)


def load_graph(
    model: Any,
    *,
    input_shape: InputShape = None,
    batch_size: int = 1,
    dtype: str | None = None,
    mode: str = "inference",
    context: int | None = None,
    trust: bool = False,
    allow_unknown: bool = False,
    as_written: bool = False,
    use_cache: bool = True,
    memory_limit_gib: float | None = None,
    timeout_s: float | None = None,
) -> Graph:
    """Read the graph of a model at a batch size, cast to ``dtype`` if one is given.

    >>> from foretell.testing import tiny_onnx
    >>> graph = load_graph(tiny_onnx(), batch_size=4)
    >>> graph.batch_size, graph.parameter_count
    (4, 248)
    """
    size = check_batch_size(batch_size)
    check_mode(mode)
    if context is not None and context < 1:
        raise InputError(f"The context is {context}; it must be 1 token or more.")
    target_dtype = parse_dtype(dtype) if dtype is not None else None
    request = ModelRequest(
        model, read_input_shape(input_shape), mode=mode, context=context, trust=trust, allow_unknown=allow_unknown,
        as_written=as_written, memory_limit_gib=memory_limit_gib, timeout_s=timeout_s,
    )  # fmt: skip
    request.check_limits()
    graph = at_batch(convert(request, use_cache=use_cache), size)
    return graph if target_dtype is None else graph.with_dtype(target_dtype)


def has_batch(graph: Graph) -> bool:
    """Whether any input of a graph has a batch; if none has, one run is one item."""
    return not graph.inputs or any(graph.tensors[name].batch_axis is not None for name in graph.inputs)


def at_batch(graph: Graph, batch_size: int) -> Graph:
    """The graph at a batch size; refuse one that it cannot have."""
    check_batch(graph, batch_size)
    return graph.with_batch(batch_size)


def check_batch(graph: Graph, batch_size: int) -> None:
    """A graph without a batch stays as it is, and has no other batch size than 1."""
    if batch_size != graph.batch_size and not has_batch(graph):
        raise InputError(
            f"{graph.name} has no batch, so the batch size cannot be {batch_size}: its inputs stay as they are. Leave "
            "it out; or give each input, as --input NAME=3x224x224 (a batch is put in front) or NAME=2708x1433! (none)."
        )


def choose_predictor(predictor: str | None, target: Target) -> Predictor:
    """The predictor with a name, or the best one for the device; wrapped to support slices if the target is one.

    One that ``foretell adapt`` made for the device on this machine is better than any other.
    """
    own = own_predictor_path(target.device.id)
    is_usual = not target.device.is_cpu or target.run == ONE_THREAD
    if predictor is None and is_usual and own.is_file():
        predictor = str(own)
    selected = find_predictor(predictor, target.device.id)
    if not is_usual:
        from foretell.predictors.cpu.model import on_run  # imports numpy, which would slow down the start

        selected = on_run(selected, target.run, (_NOT_ADAPTED,) if own.is_file() else ())
    if target.device.is_cpu and predictor in (None, best_fitted(target.device.id)):
        selected = _at_own_pace(selected, target.device.id)
    if target.slice is not None:
        from foretell.predictors.slices.model import on_slices  # imports numpy, which would slow down the start

        selected = on_slices(selected, target.device)
    return selected


def _at_own_pace(predictor: Predictor, device: str) -> Predictor:
    """A fitted predictor of a CPU at the pace that ``foretell characterise`` found here; else as it is."""
    from foretell.workflows.measure.characterise import read_own_ceilings  # only a CPU needs it

    own = read_own_ceilings().get(device)
    if own is None or own.reference_ms is None or best_fitted(device) is None:
        return predictor
    from foretell.predictors.adapted.paced import PacedPredictor  # imports numpy, which would slow down the start
    from foretell.predictors.slices.model import UnitTimePredictor

    return (
        PacedPredictor(predictor, own.reference_ms, own.date) if isinstance(predictor, UnitTimePredictor) else predictor
    )


def own_predictor_path(device: str) -> Path:
    """Where ``foretell adapt`` keeps the predictor of a device, in the user's folder; it may not exist."""
    return cache_folder() / "predictors" / f"{Path(device).name}.zip"


def check_batch_size(batch_size: object) -> int:
    """The batch size as an int; it must be a whole number in a reasonable range."""
    try:
        if isinstance(batch_size, bool):  # bool is a subclass of int
            raise TypeError
        size = operator.index(batch_size)  # type: ignore[arg-type]
    except TypeError:
        size = 0
    if not 1 <= size <= MAX_BATCH:
        raise InputError(f"The batch size is {batch_size}; it must be a whole number between 1 and {MAX_BATCH}.")
    return size


def check_dtype(dtype: str) -> str:
    """The canonical name of a precision; ``tf32`` is one, though its tensors are those of fp32.

    >>> check_dtype("half"), check_dtype("TF32")
    ('fp16', 'tf32')
    """
    name = dtype.strip().lower().removeprefix("torch.")
    return TF32 if name == TF32 else parse_dtype(dtype)


def check_mode(mode: str) -> None:
    """Raise an error if a mode does not exist."""
    if mode not in MODES:
        raise InputError(f"Unknown mode {mode!r}.{did_you_mean(mode, MODES)}")


def check_optimizer(optimizer: str | None, mode: str) -> str | None:
    """The optimizer of a training step, ``sgd`` by default; None in all other modes."""
    if mode == "training":
        from foretell.graph.cost.training import find_optimizer  # only a training step needs it

        optimizer = optimizer or "sgd"
        find_optimizer(optimizer)
    elif optimizer is not None:
        raise InputError(f"An optimizer ({optimizer!r}) needs --mode training.")
    return optimizer


def read_input_shape(shape: InputShape) -> tuple[InputSpec, ...]:
    """Read the shapes of inputs, without the batch: one shape, several ``--input`` texts, or a dictionary of shapes.

    >>> read_input_shape((3, 224, 224)) == read_input_shape("3x224x224") == read_input_shape(["3x224x224"])
    True
    """
    if not shape:
        return ()
    if isinstance(shape, str):
        return parse_inputs([shape])
    if isinstance(shape, Mapping):
        return tuple(
            parse_inputs(f"{name}={'x'.join(str(d) for d in sizes) or 'scalar'}" for name, sizes in shape.items())
        )
    if all(isinstance(d, str) for d in shape):
        return parse_inputs([str(d) for d in shape])
    return parse_inputs(["x".join(str(d) for d in shape)])
