"""Profiling: one workload of one model, measured by a process that does nothing else.

The process reads one request from standard input and answers with one result. A workload that fails gives a result with
a status. A crash ends only this process (see `isolation`).
"""

import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from foretell.errors import ForetellError, InputError, MeasurementError
from foretell.processes.child import die_with_parent, redirect_output, short
from foretell.processes.device_lock import DeviceLock
from foretell.profiling.campaign.plan import Measuring
from foretell.profiling.environment import describe
from foretell.profiling.source import Source
from foretell.profiling.workload import Spec, Workload, parse_spec
from foretell.profiling.zoos.registry import build, load_zoo
from foretell.profiling.zoos.zoo import Built, Entry

Values = dict[str, Any]

DEFAULT_TOKENS = 128
COUNTING_S = 120.0
NO_DEVICE = "no_device"
ZOO_BUILDER = "foretell.profiling.single:build_from_zoo"
RUNTIMES = {"cuda": ("cuda-graph", "eager", "compiled"), "cpu": ("eager", "compiled", "onnxruntime")}
_NO_MEMORY = ("out of memory", "DefaultCPUAllocator", "can't allocate memory", "bad_alloc", "Failed to allocate memory")


@dataclass(frozen=True)
class Request:
    """What to measure and how. ``builder`` names the function that makes the model: ``module:function``.

    ``counting`` runs the workload once between the marks of a profiler, and times nothing. ``fusion`` names a compiler,
    ``fusion_by`` the function that calls it ("module:name").
    With an empty ``input_shape`` the model chooses the shape; ``inputs`` are the texts of ``--input`` for builders that
    take several inputs.
    """

    model: str
    device: str = "cpu"
    batch_size: int = 1
    input_shape: tuple[int, ...] = ()
    inputs: tuple[str, ...] = ()
    dtype: str = "fp32"
    mode: str = "inference"
    optimizer: str = ""
    runtime: str = "eager"
    energy: bool = False
    kernels: bool = False
    fusion: str = ""
    counting: bool = False
    threads: int = 1
    context: int | None = None
    trust: bool = False
    builder: str = ZOO_BUILDER
    fusion_by: str = ""
    channels_last: bool = False
    measuring: Measuring = field(default_factory=lambda: Measuring(replays=30, eager_runs=30))

    def to_json(self) -> str:
        """The request as text."""
        return json.dumps(asdict(self))


def request_from_json(text: str) -> Request:
    """The request that :meth:`Request.to_json` wrote."""
    values: Values = json.loads(text)
    values["measuring"] = Measuring(**values["measuring"])
    values |= {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
    return Request(**values)


def build_from_zoo(request: Request) -> Source:
    """A model of the profiling zoos, by default with its own input shape."""
    spec = parse_spec(request.model)
    zoo = load_zoo(spec.zoo)
    prepare = getattr(zoo, "prepare", None)
    if prepare is not None:
        prepare()
    entry = _entry(request, spec.zoo, spec.name)
    shape, model = request.input_shape, request.model
    if entry is not None and entry.input_shape:
        shape = _image(shape, entry.input_shape)
        if spec.zoo == "timm" and shape != entry.input_shape and not entry.flexible:
            if len(set(shape[1:])) > 1:
                raise InputError(f"{request.model} takes square images; got {'x'.join(map(str, shape))}.")
            model = str(replace(spec, arguments={**spec.arguments, "img_size": shape[-1]}))
    built = build(model)
    if not shape:
        shape = _usual_shape(spec, built.model)
    if not shape:
        raise InputError(f"The input of {request.model} is not known. Give it, without the batch: --input 3x224x224")
    return Source(built, shape, entry.family if entry is not None else "", spec=model)


def _usual_shape(spec: Spec, model: Any) -> tuple[int, ...]:
    """The input shape of a model that no zoo lists, if its spec contains one."""
    if spec.zoo == "hf" and model.main_input_name == "pixel_values":
        return (model.config.num_channels, model.config.image_size, model.config.image_size)
    if spec.zoo == "hf":
        return (DEFAULT_TOKENS,) if model.main_input_name == "input_ids" else ()
    if spec.zoo == "synthetic" and spec.name == "mlp":
        return (int(str(spec.arguments["widths"]).partition("-")[0]),)
    return (1, 28, 28) if spec.zoo == "synthetic" and spec.name == "lenet" else ()


def _entry(request: Request, zoo: str, name: str) -> Entry | None:
    from foretell.profiling.campaign.plan import Part

    entries = load_zoo(zoo).entries(Part("profile", 1.0, (zoo,)), 0)
    if zoo == "hf":
        entries = [*entries, *load_zoo("llm").entries(Part("profile", 1.0, ("llm",)), 0)]
    plain = f"{zoo}:{name}"
    match = next((entry for entry in entries if entry.spec == request.model), None)
    if match is not None or zoo not in ("timm", "torchvision"):
        return match
    same = next((entry for entry in entries if entry.spec == plain), None)
    if same is None:
        from foretell.registry import did_you_mean

        names = [entry.spec.partition(":")[2] for entry in entries]
        raise InputError(f"{zoo} has no model {name!r}.{did_you_mean(name, names)}")
    return same


def _image(shape: tuple[int, ...], default: tuple[int, ...]) -> tuple[int, ...]:
    """``224``, ``224x224`` and ``3x224x224`` mean the same image."""
    if not shape:
        return default
    if len(shape) == 1 and len(default) > 2:
        return (*default[:-2], shape[0], shape[0])
    if len(shape) == len(default) - 1:
        return (default[0], *shape)
    if len(shape) != len(default):
        sizes = "x".join(map(str, default))
        raise InputError(
            f"The input {'x'.join(map(str, shape))} does not fit: this model takes {sizes}, without the batch."
        )
    return shape


class SingleRun:
    """Builds, warms up, measures and traces one workload on one runtime.

    With a ``device_lock`` several of these run side by side, and each is timed alone.
    """

    def __init__(
        self, request: Request, folder: Path, send: Callable[[Values], None], device_lock: DeviceLock | None = None
    ) -> None:
        self._request = request
        self._device_lock = device_lock
        self._folder = folder
        self._send = send
        self._runtime: Any = None
        self._step: Any = None
        self._model: Any = None
        self._values: Values = {}

    def measure(self) -> Values:
        """The result; an error of the model is a result too."""
        request = self._request
        result: Values = {"status": "ok", "error": None, "workload": None, "kernels": None}
        try:
            self._open()
        except MeasurementError as error:
            return result | {"status": NO_DEVICE, "error": str(error)}
        try:
            self._stage("building the model")
            started = time.perf_counter()
            make: Callable[[Request], Source] = _load(request.builder)
            source = make(request)
        except ForetellError as error:
            return result | {"status": "build_error", "error": str(error)}
        except Exception as error:  # noqa: BLE001 a model that cannot be built is a finding
            return result | {"status": _status(error, "build_error"), "error": short(error)}
        shape, family = source.input_shape, source.family
        optimizer = request.optimizer if request.mode == "training" else ""
        spec = source.spec or request.model
        layout = request.channels_last
        workload = Workload(spec, request.batch_size, shape, request.dtype, request.mode, optimizer, family, layout)
        result["workload"] = workload.to_json()
        self._values["build_s"] = time.perf_counter() - started
        try:
            self._prepare(source, workload)
            if request.counting:
                self._stage("counting")
                self._count()
                return result | {"values": self._values}
            self._stage("measuring")
            result["kernels"] = self._time()
            if request.kernels and result["kernels"] is None:
                self._stage("tracing")
                result["kernels"] = self._trace()
            if request.fusion:
                self._stage("compiling")
                result["fusion"] = self._fuse(workload)
        except Exception as error:  # noqa: BLE001 a model that cannot run is a finding
            result |= {"status": _status(error, "run_error"), "error": short(error)}
        return result | {"values": self._values}

    def _stage(self, name: str) -> None:
        self._send({"event": "stage", "stage": name})

    def _open(self) -> None:
        import torch

        request = self._request
        torch.set_num_threads(request.threads)
        device_lock = self._device_lock or DeviceLock(self._folder, 0)
        device_lock.open()
        if request.device == "cpu":
            from foretell.profiling.runtimes.cpu import CpuRuntime

            self._runtime = CpuRuntime(device_lock, request.measuring)
        else:
            if not torch.cuda.is_available():
                raise MeasurementError("PyTorch sees no NVIDIA GPU on this machine. Use --device cpu.")
            from foretell.profiling.runtimes.cuda import CudaRuntime

            self._runtime = CudaRuntime(device_lock, request.measuring)
        self._runtime.open(tracing=False)

    def _prepare(self, source: Source, workload: Workload) -> None:
        """Place the weights on the device, make the step, warm it up, and read the memory."""
        from foretell.profiling.steps import make_step, weight_dtype

        request, runtime = self._request, self._runtime
        if request.runtime == "onnxruntime":
            from foretell.profiling.runtimes.onnx_runtime import make_session_step

            self._stage("converting to ONNX" if source.built is not None else "loading")
            self._step = make_session_step(source, workload, self._folder, request.threads)
        else:
            from foretell.profiling.skeleton import Weights

            built = source.built
            if built is None:
                raise InputError(f"{request.model} is an ONNX file: it runs on --runtime onnxruntime.")
            runtime.clear()
            Weights(built.model, cast_buffers=built.cast_buffers).place(
                runtime.device, weight_dtype(workload), channels_last=workload.channels_last
            )
            runtime.clear()
            self._values["parameters"] = sum(parameter.numel() for parameter in built.model.parameters())
            self._values["parameters_mib"] = runtime.parameters_mib()
            self._model = built.model
            if request.runtime == "compiled":
                self._stage("compiling")
                built = _compiled(built)
            self._step = make_step(built, workload, runtime.device)
            runtime.clear()
            runtime.reset_memory()
        self._stage("warming up")
        started = time.perf_counter()
        record, cost = runtime.warm_up(self._step, request.measuring.warmups)
        self._values |= record | {"warm_up_s": time.perf_counter() - started}
        self._values |= {"module_macs": cost.macs, "module_outputs": cost.outputs}

    def _time(self) -> Values | None:
        """Latency and energy, and the kernels if the latency was computed from them."""
        from foretell.profiling.runtimes.cpu import CpuRuntime
        from foretell.profiling.runtimes.cuda import CaptureError

        request, started = self._request, time.perf_counter()
        kernels: Values | None = None
        if request.device == "cuda" and request.runtime == "eager":
            # the CPU runtime times with the wall clock, which is what eager mode needs, also on a GPU
            clock = CpuRuntime(self._runtime._device_lock, request.measuring, reference=False)
            measured = clock.measure(_synchronised(self._step), energy=False) | {"latency_source": "wall-clock"}
        else:
            try:
                measured = self._runtime.measure(self._step, energy=request.energy)
            except CaptureError as error:
                self._values["capture_error"] = str(error)
                measured, table = self._runtime.measure_uncaptured(self._step, self._model)
                kernels = table.to_json()
        self._values |= measured | {"measure_s": time.perf_counter() - started}
        return kernels

    def _trace(self) -> Values:
        if self._request.runtime == "onnxruntime":
            from foretell.profiling.runtimes.onnx_runtime import trace_session

            return trace_session(self._step, self._folder)
        table: Values = self._runtime.trace(self._step, self._model, 1)[0].to_json()
        return table

    def _count(self) -> None:
        """Run once, so that a profiler around this process can count the kernels."""
        from foretell.profiling.runtimes.counted_worker import Counting

        counting = Counting(self._request.device)
        counting.open()
        with counting.range(COUNTING_S):
            self._step.run()

    def _fuse(self, workload: Workload) -> Values:
        request = self._request
        # release the model on the device: the compiler builds its own
        self._step = self._model = None
        answer = _load(request.fusion_by)(request.fusion, workload, request.device, float("inf"))
        return {"backend": request.fusion, "status": answer.status, **answer.values}


def _compiled(built: Built) -> Built:
    import torch

    return replace(built, model=torch.compile(built.model))


def _synchronised(step: Any) -> Any:
    import torch

    from foretell.profiling.steps import Step

    def run() -> Any:
        output = step.run()
        torch.cuda.synchronize()
        return output

    return Step(run, step.close)


def _load(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def _status(error: BaseException, otherwise: str) -> str:
    text = f"{type(error).__name__} {error}"
    return "oom" if isinstance(error, MemoryError) or any(sign in text for sign in _NO_MEMORY) else otherwise


def main() -> int:
    """Answer the request on standard input."""
    die_with_parent()
    request = request_from_json(sys.stdin.readline())
    send = redirect_output()
    with tempfile.TemporaryDirectory(prefix="foretell-profile-") as folder:
        facts = describe(request.device)
        result = SingleRun(request, Path(folder), send).measure()
        send({"event": "result", "facts": facts, **result})
    os._exit(0)  # compilers leave threads and processes behind, which would keep this process alive


if __name__ == "__main__":
    sys.exit(main())
