"""Workflows: run one model on this machine and measure latency, memory, energy and kernels."""

import hashlib
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from foretell.devices import find_device
from foretell.errors import DeviceError, ForetellError, InputError, MissingExtraError, ModelError, UntrustedModelError
from foretell.frontends.sources import recognise
from foretell.graph import Graph
from foretell.optional import available
from foretell.profiling.isolation import count_alone, measure_alone
from foretell.profiling.replays.mps import MpsDaemon
from foretell.profiling.single import NO_DEVICE, RUNTIMES, ZOO_BUILDER, Request
from foretell.profiling.workload import DTYPES, TF32, workload_from_json
from foretell.records import Estimate, KernelRun, Measurement, Prediction
from foretell.registry import did_you_mean
from foretell.units import per_second
from foretell.workflows.predict import predict
from foretell.workflows.workload import (
    InputShape,
    check_batch_size,
    check_mode,
    check_optimizer,
    load_graph,
    read_input_shape,
    runtime_name,
)

DEVICES = ("cpu", "cuda")
FUSION_BY = "foretell.workflows.measure.fusion_worker:answer"
FUSION_BACKENDS = ("inductor", "onnxruntime")
TIMEOUT_S = 600.0
_BUILDERS: Mapping[str, str] = {
    "hf": "foretell.workflows.measure.foreign_models:build_huggingface",
    "python": "foretell.workflows.measure.foreign_models:build_python",
    "onnx": "foretell.workflows.measure.foreign_models:build_onnx",
}
_ZOOS = ("timm", "torchvision", "synthetic", "wild")
_90_PERCENT = 1.645  # standard deviations of a normal distribution on either side
_PLAIN_METRICS = ("memory_mib", "device_memory_mib", "process_peak_mib", "energy_j", "power_w")
_NOT_FACTS = ("latency_ms", "host_latency_ms", "error", *_PLAIN_METRICS)


def profile(
    model: str | Path,
    *,
    device: str = "cpu",
    batch_size: int = 1,
    input_shape: InputShape = None,
    dtype: str = "fp32",
    mode: str = "inference",
    optimizer: str | None = None,
    channels_last: bool = False,
    runtime: str | None = None,
    energy: bool = False,
    kernels: bool = False,
    fusion: str | None = None,
    occupancy: bool = False,
    slice: str | None = None,
    threads: int = 1,
    context: int | None = None,
    trust: bool = False,
    memory_limit_gib: float | None = None,
    timeout_s: float = TIMEOUT_S,
    store: str | Path | None = None,
    on_stage: Callable[[str], None] = lambda _: None,
) -> Measurement:
    """Run a model on this machine, in a separate process, and measure it.

    Args:
        model: A spec (``timm:resnet50``, ``synthetic:lenet?scale=1``, ``hf:gpt2``), a config.json, ``net.py:build`` or
            an ONNX file.
        device: cpu or cuda.
        batch_size: Items in a batch.
        input_shape: Shape of the input without the batch; the model's own by default.
        dtype: fp32, tf32 (on cuda: matrix products in TF32), fp16 or bf16; in training bf16 means autocast.
        mode: inference, training, prefill or decode.
        optimizer: sgd (momentum) or adamw, in training.
        channels_last: Convert the model and its images with ``.to(memory_format=torch.channels_last)``.
        runtime: cuda-graph, eager or compiled on cuda; eager, compiled or onnxruntime on cpu. The first is the default.
        energy: Read the GPU's energy counter while the model runs for a second.
        kernels: Trace one run: kernels on a GPU, operators on a CPU.
        fusion: Also record which operators a compiler fuses into one kernel: inductor or onnxruntime.
        occupancy: Also measure the achieved occupancy, with NVIDIA's profiler.
        slice: A share of the GPU's multiprocessors: ``20%``.
        threads: CPU threads, with ``device="cpu"``.
        context: Tokens already in the cache, when decoding.
        trust: Allow code that comes with the model to run.
        memory_limit_gib: Give up when the process holds more main memory; by default there is no limit.
        timeout_s: Give up after so many seconds.
        store: A folder or a ``postgresql://…`` address to append the measurement to.
        on_stage: Called with the name of each stage.

    If the model fails, hangs or does not fit, the ``status`` and ``error`` of the measurement say so.

    >>> profile("synthetic:lenet?scale=1", device="h200")
    Traceback (most recent call last):
    ...
    foretell.errors.DeviceError: Cannot measure on 'h200'. Choose from: cpu, cuda.
    """
    if not isinstance(model, str | Path):
        raise ModelError(
            f"A {type(model).__name__} cannot be profiled directly: models run in a separate process. "
            "Put a function that builds it into a file and name it: profile('net.py:build', input_shape=…, trust=True)."
        )
    for option, limit in (("--memory-limit", memory_limit_gib), ("--timeout", timeout_s)):
        if limit is not None and not 0 < limit < math.inf:
            raise InputError(f"Got {option} {limit:g}; it must be a number above 0.")
    # Cheap checks come first: starting a process that imports torch takes seconds.
    request = make_request(
        str(model), device=device, batch_size=batch_size, input_shape=input_shape, dtype=dtype, mode=mode,
        optimizer=optimizer, runtime=runtime, energy=energy, kernels=kernels, threads=threads, context=context,
        trust=trust, fusion=fusion, channels_last=channels_last,
    )  # fmt: skip
    if not available("torch"):
        raise MissingExtraError("Profiling runs models with torch: pip install 'foretell[profile]'")
    if device == "cpu" and (occupancy or slice):
        raise InputError("Occupancy and slices need a GPU: use --device cuda.")
    if store is not None and slice:
        raise InputError(
            "A measurement on a slice cannot be stored here; use foretell collect with a plan of the kind slices."
        )
    if store is not None and device == "cpu" and threads != 1:
        raise InputError(f"Stored CPU measurements use 1 thread, not {threads}, so that they can be compared.")
    if store is not None:
        from foretell.workflows.measure.collect import try_store

        try_store(str(store))
    notes: tuple[str, ...] = ()
    with _gpu_share(slice) as environment:
        result = measure_alone(
            request,
            timeout_s=timeout_s,
            memory_limit_gib=memory_limit_gib,
            environment=environment,
            on_stage=on_stage,
        )
    if result["status"] == NO_DEVICE:
        raise DeviceError(str(result["error"]))
    if store is not None:
        from foretell.workflows.measure.storing import store_single

        on_stage("read its graph")
        graph, lost = _graph_to_store(request, result)
        store_single(store, stored_spec(request.model), request, result, graph)
        notes = (lost,) if lost else ()
    # Occupancy is measured in a separate run: the profiler slows kernels down and would spoil the latency.
    counted = None
    if occupancy and result["status"] == "ok":
        counted = count_alone(request, timeout_s=timeout_s, memory_limit_gib=memory_limit_gib)
    measurement = to_measurement(request, result, counted, slice)
    return replace(measurement, warnings=(*measurement.warnings, *notes))


def _graph_to_store(request: Request, result: Mapping[str, Any]) -> tuple[Graph | None, str | None]:
    """The graph of a measured model, by which predict and adapt know it again; or why there is none."""
    if result["status"] != "ok" or result.get("workload") is None:
        return None, None
    from foretell.training.examples.graphs import GraphKey, make_graph

    try:
        if request.builder == ZOO_BUILDER and request.model.partition(":")[0] not in ("timm", "torchvision"):
            workload = workload_from_json(result["workload"])
            return make_graph(GraphKey(workload.spec, workload.input_shape, workload.mode)), None
        shape = list(request.inputs) or "x".join(map(str, result["workload"]["input_shape"]))
        context = request.context if request.mode == "decode" else None
        # the same reader as that of predict, so that equal models have equal graphs
        return load_graph(
            request.model, input_shape=shape, mode=request.mode, context=context, trust=request.trust
        ), None
    except ForetellError as error:
        return None, f"Stored without its graph, so predict --store will not find it: {error}"


@contextmanager
def _gpu_share(text: str | None) -> Iterator[Mapping[str, str]]:
    """Run the MPS daemon, and yield the environment variables that give a process its share of the GPU."""
    if text is None:
        yield {}
        return
    percent = parse_percent(text)
    with tempfile.TemporaryDirectory(prefix="foretell-mps-") as folder, MpsDaemon(Path(folder)) as daemon:
        yield daemon.client(percent)


def parse_percent(text: str) -> float:
    """The percentage in a share of a GPU.

    >>> parse_percent("20%"), parse_percent("mps:12.5")
    (20.0, 12.5)
    """
    try:
        percent = float(text.removeprefix("mps:").removesuffix("%"))
    except ValueError:
        percent = 0.0
    if not 0 < percent <= 100:
        raise InputError(f"Cannot measure on the slice {text!r}. Give a share of the multiprocessors: 20%.")
    return percent


def make_request(
    model: str,
    *,
    device: str,
    batch_size: int,
    input_shape: InputShape,
    dtype: str,
    mode: str,
    optimizer: str | None,
    runtime: str | None,
    energy: bool,
    kernels: bool,
    threads: int,
    context: int | None,
    trust: bool,
    fusion: str | None = None,
    channels_last: bool = False,
) -> Request:
    """Check all arguments before any process is started."""
    if device not in DEVICES:
        raise DeviceError(f"Cannot measure on {device!r}.{did_you_mean(device, DEVICES)}")
    runtime = runtime_name(runtime) if runtime else _default_runtime(model, device)
    check_mode(mode)
    if dtype not in (*DTYPES, TF32):
        raise InputError(f"Unknown dtype {dtype!r}.{did_you_mean(dtype, (*DTYPES, TF32))}")
    if dtype == TF32 and device == "cpu":
        raise InputError("TF32 is a precision of NVIDIA's GPUs: use --device cuda, or --dtype fp32.")
    if channels_last and runtime == "onnxruntime":
        raise InputError("ONNX Runtime chooses layouts itself: leave out --channels-last, or use another --runtime.")
    if runtime not in RUNTIMES[device]:
        raise InputError(f"There is no runtime {runtime!r} on {device}.{did_you_mean(runtime, RUNTIMES[device])}")
    batch_size = check_batch_size(batch_size)
    if threads < 1:
        raise InputError(f"Got {threads} threads; it must be 1 or more.")
    optimizer = check_optimizer(optimizer, mode)
    if mode == "training" and dtype == "fp16":
        raise InputError("Training is measured in fp32 or with bf16 autocast, not in fp16.")
    if energy and device == "cpu":
        raise InputError("Energy is read from a GPU's counter: use --device cuda.")
    builder = find_builder(model, runtime, trust=trust)
    if mode in ("prefill", "decode") and not (model.startswith("hf:") or builder == _BUILDERS["hf"]):
        raise InputError(f"The mode {mode!r} is for language models from hf:ID or a config.json; {model} is not one.")
    if fusion and fusion not in FUSION_BACKENDS:
        raise InputError(f"Unknown compiler {fusion!r}.{did_you_mean(fusion, FUSION_BACKENDS)}")
    if fusion and (builder != ZOO_BUILDER or mode != "inference"):
        raise InputError("--fusion is for inference of timm:, torchvision:, hf:TYPE?… and synthetic: models.")
    specs = read_input_shape(input_shape)
    if builder == ZOO_BUILDER and len(specs) > 1:
        raise InputError(f"{model} takes one input; got {len(specs)}.")
    named = [f"{spec.name + '=' if spec.name else ''}{spec}{':' + spec.dtype if spec.dtype else ''}" for spec in specs]
    shape = specs[0].shape if specs else ()
    # When decoding, the length of the cache takes the place of the input shape.
    if mode == "decode" and context:
        shape = (context,)
    return Request(
        model, device, batch_size, shape, tuple(named), dtype, mode, optimizer or "", runtime, energy, kernels,
        fusion or "", False, threads, context, trust, builder,
        FUSION_BY if fusion else "", channels_last,
    )  # fmt: skip


def _default_runtime(model: str, device: str) -> str:
    """The first runtime of the device, but ONNX Runtime for ONNX files on a CPU."""
    return "onnxruntime" if device == "cpu" and model.lower().endswith(".onnx") else RUNTIMES[device][0]


def find_builder(model: str, runtime: str, *, trust: bool) -> str:
    """The function that builds a model in the child process, as ``module:function``."""
    scheme, _, rest = model.partition(":")
    # hf:TYPE?… is a configuration of the zoo, hf:ID a model of the hub.
    if scheme in _ZOOS or (scheme == "hf" and "?" in rest):
        return ZOO_BUILDER
    kind = recognise(model)
    if kind not in _BUILDERS:
        raise ModelError(
            f"{model} cannot be run here. A model to profile is timm:NAME, torchvision:NAME, hf:ID, config.json, "
            "synthetic:KIND?…, net.py:build or an ONNX file."
        )
    if kind == "onnx" and runtime != "onnxruntime":
        raise InputError(f"{Path(model).name} is an ONNX file: it runs on --device cpu --runtime onnxruntime.")
    if kind == "python" and not Path(model.rpartition(":")[0]).is_file():
        raise ModelError(f"There is no file {model.rpartition(':')[0]!r}.")
    if kind == "python" and not trust:
        raise UntrustedModelError(f"Profiling {model} runs its code. If you trust it, add --trust.")
    return _BUILDERS[kind]


def stored_spec(model: str) -> str:
    """The name of a model in a store. A file is named by its content, because file names are not unique."""
    path = Path(model.rpartition(":")[0] if model.rpartition(":")[0].endswith(".py") else model)
    if path.is_dir():
        # A folder is a Hugging Face model, which its config identifies.
        path /= "config.json"
    if not path.is_file():
        return model
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    return f"file:{Path(model).name.replace(':', '.').replace('?', '_')}?sha256={digest}"


def to_measurement(
    request: Request,
    result: Mapping[str, Any],
    counted: Mapping[str, Any] | None = None,
    slice: str | None = None,
) -> Measurement:
    """The result of the child process as a record; ``counted`` is that of a separate run under NVIDIA's profiler."""
    values: Mapping[str, Any] = result.get("values") or {}
    facts: dict[str, Any] = dict(result.get("facts") or {})
    name = str(facts.get("device_name") or request.device)
    metrics: dict[str, Estimate] = {
        key: _exact(float(values[key])) for key in _PLAIN_METRICS if values.get(key) is not None
    }
    if values.get("latency_ms") is not None:
        latency = _spread(
            float(values["latency_ms"]),
            float(values.get("latency_cv") or 0.0),
            float(values.get("latency_min_ms") or 0),
        )
        metrics["latency_ms"] = latency
        # The highest latency gives the lowest throughput, hence the order of the ends.
        metrics["throughput_per_s"] = Estimate(*(per_second(request.batch_size, ms) for ms in
                                                 (latency.value, latency.high, latency.low)))  # fmt: skip
    # On a CPU, host and device are the same: there is no second latency.
    if request.device == "cuda" and values.get("host_latency_ms") is not None:
        metrics["host_latency_ms"] = _exact(float(values["host_latency_ms"]))
    warnings = _warnings(values)
    if counted is not None and counted["status"] == "ok":
        metrics["occupancy"] = _exact(float(counted["values"]["occupancy_weighted"]))
        facts["occupancy_mean"] = float(counted["values"]["occupancy_mean"])
    elif counted is not None:
        warnings.append(f"Occupancy could not be counted: {counted['error']}")
    fusion = dict(result.get("fusion") or {})
    if fusion and fusion["status"] != "ok":
        warnings.append(f"Fusion could not be read: {fusion.get('error')}")
        fusion = {}
    workload = result.get("workload") or {}
    shape = tuple(workload.get("input_shape") or request.input_shape)
    table = result.get("kernels") or {}
    columns = [table.get(column, []) for column in ("name", "duration_us", "op", "module")]
    runs = tuple(KernelRun(str(n), float(d), str(o), str(m)) for n, d, o, m in zip(*columns)) if table else ()
    part = f"mps:{parse_percent(slice):g}" if slice else None
    # Values that are not metrics of their own become facts.
    other_values = {key: value for key, value in values.items() if key not in _NOT_FACTS and value is not None}
    return Measurement(
        model=request.model, device=name, slice=part, runtime=request.runtime, mode=request.mode,
        batch_size=request.batch_size, dtype=request.dtype, status=str(result["status"]), error=result.get("error"),
        optimizer=request.optimizer or None, channels_last=request.channels_last, input_shape=shape,
        kernels=runs, fusion=fusion, warnings=tuple(warnings),
        facts=facts | other_values | ({"threads": request.threads} if request.device == "cpu" else {}), **metrics,
    )  # fmt: skip


def _exact(value: float) -> Estimate:
    return Estimate(value, value, value)


def _spread(value: float, cv: float, least: float) -> Estimate:
    """The interval of nine runs in ten, assuming a normal distribution; no run was faster than ``least``."""
    low = min(max(value * (1 - _90_PERCENT * cv), least), value)
    return Estimate(value, low if low > 0 else value, value * (1 + _90_PERCENT * cv))


def _warnings(values: Mapping[str, Any]) -> list[str]:
    warnings = []
    if values.get("noisy"):
        warnings.append(f"The repetitions differ by {values['latency_cv']:.0%}: other work may run on this machine.")
    if values.get("capture_error"):
        reason = str(values["capture_error"]).rstrip(".")
        warnings.append(
            f"No CUDA graph could be captured ({reason}): the latency is the sum of the kernels' durations."
        )
    if values.get("output_finite") is False:
        warnings.append("The output has infinite or undefined numbers: random weights overflow in this precision.")
    if values.get("energy_error"):
        warnings.append(str(values["energy_error"]))
    return warnings


def predict_beside(
    measurement: Measurement,
    *,
    trust: bool = False,
    memory_limit_gib: float | None = None,
    timeout_s: float | None = None,
) -> Prediction | None:
    """The prediction for the same workload; None if the device is not in the catalogue or the model cannot be read."""
    try:
        device = find_device(
            str(measurement.facts.get("host_cpu") if measurement.device == "cpu" else measurement.device)
        )
        shape = "x".join(map(str, measurement.input_shape))
        decoding = measurement.mode == "decode"
        return predict(
            measurement.model,
            device=device,
            slice=measurement.slice,
            batch_size=measurement.batch_size,
            input_shape=None if decoding else shape or None,
            dtype=measurement.dtype,
            mode=measurement.mode,
            optimizer=measurement.optimizer,
            channels_last=measurement.channels_last,
            context=measurement.input_shape[0] if decoding else None,
            trust=trust,
            memory_limit_gib=memory_limit_gib,
            timeout_s=timeout_s,
        )
    except ForetellError:
        return None
