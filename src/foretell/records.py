"""What flows between the rooms: workloads in, predictions and measurements out. Frozen, with a unit in every name."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, field
from functools import cached_property
from math import isfinite
from typing import Any, Literal

from foretell.devices import Device, Hardware, Slice, effective
from foretell.devices.cpu_runs import EAGER, ONNX_RUNTIME, CpuRun
from foretell.errors import ModelError
from foretell.frozen import dataclass
from foretell.graph import Graph
from foretell.graph.ir.layout import in_channels_last
from foretell.graph.ir.passes import autocast, in_tf32
from foretell.readable import Readable, spell

TF32 = "tf32"


@dataclass(frozen=True)
class Target:
    """Where a model would run: a device, a part of it, the runtime that drives it, and on a CPU its threads."""

    device: Device
    slice: Slice | None = None
    runtime: str = "cuda-graph"
    threads: int = 1

    @property
    def run(self) -> CpuRun:
        """How a CPU runs the model; all runtimes but ONNX Runtime count as eager PyTorch."""
        return CpuRun(ONNX_RUNTIME if self.runtime == ONNX_RUNTIME else EAGER, self.threads)

    @cached_property
    def hardware(self) -> Hardware:
        """The part of the device that the slice can use."""
        return effective(self.device, self.slice)


@dataclass(frozen=True)
class Workload:
    """A graph at its batch size and dtype, how it is used, and where.

    The dtype ``tf32`` means tensors of fp32 whose matrix products run in TF32.
    """

    graph: Graph
    target: Target
    dtype: str = "fp32"
    mode: str = "inference"
    optimizer: str | None = None
    channels_last: bool = False

    @property
    def options(self) -> tuple[str, ...]:
        """What is set otherwise than PyTorch's defaults: ``channels_last``, ``tf32``."""
        return ("channels_last",) * self.channels_last + (TF32,) * (self.dtype == TF32)

    @property
    def batch_size(self) -> int:
        """Items in a batch."""
        return self.graph.batch_size

    @property
    def is_training(self) -> bool:
        """Whether backward and the optimizer run too."""
        return self.mode == "training"

    @cached_property
    def running_graph(self) -> Graph:
        """The graph as it runs: training in half precision means autocast, which adds casts."""
        graph = in_channels_last(self.graph) if self.channels_last else self.graph
        if self.dtype == TF32:
            return in_tf32(graph)
        is_autocast = self.is_training and self.dtype in ("bf16", "fp16")
        return autocast(graph, self.dtype) if is_autocast else graph


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and the interval that should hold the truth nine times in ten."""

    value: float
    low: float
    high: float

    def to_dict(self) -> dict[str, float]:
        """The value and the ends of its interval."""
        return {"value": self.value, "low": self.low, "high": self.high}

    def scaled(self, factor: float) -> "Estimate":
        """The same estimate in another unit."""
        return Estimate(self.value * factor, self.low * factor, self.high * factor)

    def __add__(self, other: "Estimate") -> "Estimate":
        """The sum of two quantities; adding the ends of their intervals errs on the wide side."""
        return Estimate(self.value + other.value, self.low + other.low, self.high + other.high)

    def at_least(self, bound: float) -> "Estimate":
        """The same estimate, where a value below ``bound`` is impossible."""
        return Estimate(max(self.value, bound), max(self.low, bound), max(self.high, bound))

    def inverted(self, numerator: float = 1.0) -> "Estimate":
        """``numerator / value``, with the ends of the interval swapped."""
        return Estimate(numerator / self.value, numerator / self.high, numerator / self.low)


def interval(estimate: Estimate | None) -> dict[str, float] | None:
    """An estimate as a dictionary; None where it is not known."""
    return None if estimate is None else estimate.to_dict()


@dataclass(frozen=True, slots=True)
class OperatorShare:
    """How much of the time one kind of operator takes, and what bounds it."""

    operator: str
    count: int
    latency_ms: float
    share: float
    bound: str


@dataclass(frozen=True, slots=True)
class UnitShare:
    """How much of the time equal units of work take; ``module`` and ``shapes`` are those of the first one.

    ``over_bound`` is their time over the analytic bound with a launch; it can be below 1 if the data stay in the cache,
    and is None if the time is itself the bound. ``kernel`` is the likeliest class of their main kernel, ``probability``
    how likely it is; both are None unless kernels were requested.
    """

    operator: str
    module: str
    shapes: str
    count: int
    latency_ms: float
    share: float
    over_bound: float | None
    kernel: str | None = None
    probability: float | None = None


@dataclass(frozen=True, slots=True)
class KernelShare:
    """How much of the time units take whose main kernel is of one class; ``operators`` are those that take most of it.

    ``probability`` is how likely the class is, weighed by time.
    """

    kernel: str
    operators: tuple[str, ...]
    count: int
    latency_ms: float
    share: float
    probability: float


# in the order in which tables, JSON and notebooks show them
METRICS = (
    "latency_ms",
    "host_latency_ms",
    "throughput_per_s",
    "memory_mib",
    "device_memory_mib",
    "energy_j",
    "power_w",
    "occupancy",
)


# what identifies a row beside its metrics
_SETTING = ("model", "device", "slice", "runtime", "mode", "batch_size", "dtype")


Fits = Literal["yes", "perhaps", "no"]


def fits_into(need_mib: "Estimate | None", capacity_mib: float | None) -> Fits | None:
    """Whether a need fits into a memory: perhaps, where the interval crosses the capacity; None if one is unknown.

    >>> [fits_into(Estimate(20, 18, 23), capacity) for capacity in (24, 23, 22, 18, 17)]
    ['yes', 'yes', 'perhaps', 'perhaps', 'no']
    """
    if need_mib is None or not capacity_mib:
        return None
    if need_mib.high <= capacity_mib:
        return "yes"
    return "perhaps" if need_mib.low <= capacity_mib else "no"


def flat_metrics(record: "Prediction | Measurement") -> dict[str, float | None]:
    """All metrics for a table: the value and both ends; None where a metric is not known."""
    flat: dict[str, float | None] = {}
    for name in METRICS:
        estimate: Estimate | None = getattr(record, name)
        known = (None, None, None) if estimate is None else (estimate.value, estimate.low, estimate.high)
        flat |= zip((name, f"{name}_low", f"{name}_high"), known, strict=True)
    return flat


def _described(record: "Prediction | Measurement") -> str:
    where = f"{record.device} {record.slice}" if record.slice else record.device
    layout = ", channels-last" if record.channels_last else ""
    return f"{record.model} on {where}, {record.mode}, batch {record.batch_size}, {record.dtype}{layout}"


def _metric_lines(record: "Prediction | Measurement") -> Iterator[tuple[str, str]]:
    for name in METRICS:
        estimate: Estimate | None = getattr(record, name)
        if estimate is not None:
            yield name, spell(estimate)


@dataclass(frozen=True, slots=True)
class Parallelism:
    """How several GPUs share a step.

    ``efficiency`` is the time of a step without communication, and with no work done twice, over that of the step.
    ``batch_size`` is that of all GPUs together; ``exposed_ms`` is the part of the communication that nothing hides.
    """

    strategy: str
    gpus: int
    batch_size: int
    network: str | None
    efficiency: Estimate
    communication_ms: Estimate
    exposed_ms: Estimate

    def to_dict(self) -> dict[str, Any]:
        """The object inside that of a prediction."""
        head = ("strategy", "gpus", "batch_size", "network")
        known = {name: value for name in head if (value := getattr(self, name)) is not None}
        return known | {
            name: getattr(self, name).to_dict() for name in ("efficiency", "communication_ms", "exposed_ms")
        }


@dataclass(frozen=True, repr=False)
class Prediction(Readable):
    """How a workload will run. A metric that the predictor does not know is None, never 0.

    ``mig`` is the smallest MIG profile that will do, None if none does; ``mig_reason`` says why. Both are None
    if there is nothing to say: on a slice, on a device without MIG, from a predictor that does not know the memory.
    ``eager_latency_ms`` is the latency of the uncompiled model, if ``latency_ms`` is that of a compiled one.
    ``extrapolated`` is set by the predictor if it has no measurement of the device. With ``parallel`` the metrics are
    those of each GPU, and the throughput that of all. ``threads`` are those of a CPU.
    """

    model: str
    device: str
    slice: str | None
    runtime: str
    mode: str
    batch_size: int
    dtype: str
    predictor: str
    source: str = "predicted"
    optimizer: str | None = None
    channels_last: bool = False
    latency_ms: Estimate | None = None
    eager_latency_ms: Estimate | None = None
    host_latency_ms: Estimate | None = None
    throughput_per_s: Estimate | None = None
    memory_mib: Estimate | None = None
    device_memory_mib: Estimate | None = None
    energy_j: Estimate | None = None
    power_w: Estimate | None = None
    occupancy: Estimate | None = None
    mig: str | None = None
    mig_reason: str | None = None
    extrapolated: bool = False
    coverage: float = 1.0
    breakdown: tuple[OperatorShare, ...] = ()
    units: tuple[UnitShare, ...] = ()
    kernels: tuple[KernelShare, ...] = ()
    warnings: tuple[str, ...] = ()
    facts: Mapping[str, float] = field(default_factory=dict)
    parallel: Parallelism | None = None
    threads: int = 1

    def __post_init__(self) -> None:
        """Refuse numbers that are not finite: nobody could read them, and JSON has no word for them."""
        for name in (*METRICS, "eager_latency_ms"):
            estimate: Estimate | None = getattr(self, name)
            if estimate is not None and not isfinite(estimate.value + estimate.low + estimate.high):
                raise ModelError(f"The {name} of {self.model} is not a finite number: its sizes are impossible.")
        if not all(isfinite(share.latency_ms) for share in self.breakdown):
            raise ModelError(
                f"The time of an operator of {self.model} is not a finite number: its sizes are impossible."
            )

    @property
    def need_mib(self) -> Estimate | None:
        """What a process takes of the device's memory; without a context where only the peak is known."""
        return self.device_memory_mib or self.memory_mib

    @property
    def capacity_mib(self) -> float | None:
        """The memory of the device, or of the slice."""
        return self.facts.get("memory_capacity_mib")

    @property
    def fits(self) -> Fits | None:
        """Whether it fits into the memory: yes, perhaps (the interval crosses the capacity), no; None if unknown."""
        return fits_into(self.need_mib, self.capacity_mib)

    def heading(self) -> str:
        """The model, where it would run and how."""
        return f"Prediction: {_described(self)}"

    def lines(self) -> Iterator[tuple[str, str]]:
        """Whether it fits, the metrics that are known, the predictor, and the warnings."""
        if self.fits is not None and self.need_mib is not None:
            yield "fits", f"{self.fits}: {spell(self.need_mib)} of {self.capacity_mib:,.0f} MiB"
        yield from _metric_lines(self)
        if self.mig is not None:
            yield "mig", self.mig
        if self.parallel is not None:
            yield "parallel", f"{self.parallel.gpus} GPUs, {self.parallel.strategy}"
        yield "predictor", self.predictor + (", extrapolated" if self.extrapolated else "")
        yield from (("warning", warning) for warning in self.warnings)

    def rows(self) -> list[dict[str, Any]]:
        """One flat row: each metric with its interval; what is not known is None."""
        row = {name: getattr(self, name) for name in _SETTING}
        return [row | {"predictor": self.predictor, "extrapolated": self.extrapolated} | flat_metrics(self)]

    def to_dict(self) -> dict[str, Any]:
        """The object that ``foretell predict --json`` prints: absent metrics are absent."""
        head = ("model", "device", "slice", "runtime", "mode", "batch_size", "dtype", "source")
        result: dict[str, Any] = {name: getattr(self, name) for name in head}
        if self.optimizer is not None:
            result["optimizer"] = self.optimizer
        if self.channels_last:
            result["channels_last"] = True
        if self.threads != 1:
            result["threads"] = self.threads
        # an absent key means unknown; a null could be read as zero
        if self.fits is not None:
            result |= {"fits": self.fits, "capacity_mib": self.capacity_mib}
        for name in (*METRICS, "eager_latency_ms"):
            estimate = getattr(self, name)
            if estimate is not None:
                result[name] = estimate.to_dict()
        if self.parallel is not None:
            result["parallel"] = self.parallel.to_dict()
        if self.mig_reason is not None:
            result["mig_profile"] = {"name": self.mig, "reason": self.mig_reason}
        result["extrapolated"] = self.extrapolated
        result["coverage"] = self.coverage
        result["predictor"] = self.predictor
        result["breakdown"] = [
            {"operator": s.operator, "count": s.count, "latency_ms": s.latency_ms, "share": s.share, "bound": s.bound}
            for s in self.breakdown
        ]
        if self.units:
            # without --explain kernels the two columns would be empty
            not_requested = () if self.kernels else ("kernel", "probability")
            rows = [asdict(unit) for unit in self.units]
            result["units"] = [{name: row[name] for name in row if name not in not_requested} for row in rows]
        if self.kernels:
            result["kernels"] = [asdict(kernel) for kernel in self.kernels]
        result["warnings"] = list(self.warnings)
        return result


@dataclass(frozen=True, slots=True)
class KernelRun:
    """One kernel of one run, or one operator where there are no kernels, and what launched it."""

    name: str
    duration_us: float
    operator: str
    module: str


@dataclass(frozen=True, repr=False)
class Measurement(Readable):
    """How a workload ran. What was not measured is None, never 0; ``status`` says why nothing was.

    The interval of a latency is the spread of its repetitions; readings that were taken once have none.
    """

    model: str
    device: str
    slice: str | None
    runtime: str
    mode: str
    batch_size: int
    dtype: str
    status: str = "ok"
    error: str | None = None
    optimizer: str | None = None
    channels_last: bool = False
    input_shape: tuple[int, ...] = ()
    latency_ms: Estimate | None = None
    host_latency_ms: Estimate | None = None
    throughput_per_s: Estimate | None = None
    memory_mib: Estimate | None = None
    device_memory_mib: Estimate | None = None
    process_peak_mib: Estimate | None = None
    energy_j: Estimate | None = None
    power_w: Estimate | None = None
    occupancy: Estimate | None = None
    kernels: tuple[KernelRun, ...] = ()
    fusion: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether there is a measurement."""
        return self.status == "ok"

    def heading(self) -> str:
        """The model, where it ran and how."""
        return f"Measurement: {_described(self)}"

    def lines(self) -> Iterator[tuple[str, str]]:
        """The metrics that were measured, or why none was."""
        yield from _metric_lines(self)
        if not self.ok:
            yield "status", f"{self.status}: {self.error}" if self.error else self.status
        yield from (("warning", warning) for warning in self.warnings)

    def rows(self) -> list[dict[str, Any]]:
        """One flat row: each metric with its interval; what was not measured is None."""
        row = {name: getattr(self, name) for name in _SETTING}
        return [row | {"status": self.status} | flat_metrics(self)]

    def to_dict(self) -> dict[str, Any]:
        """The object that ``foretell profile --json`` prints: the keys of a prediction, absent metrics absent."""
        head = ("model", "device", "slice", "runtime", "mode", "batch_size", "dtype")
        result: dict[str, Any] = {name: getattr(self, name) for name in head}
        result |= {"source": "measured", "status": self.status, "input_shape": "x".join(map(str, self.input_shape))}
        if self.error is not None:
            result["error"] = self.error
        if self.optimizer is not None:
            result["optimizer"] = self.optimizer
        if self.channels_last:
            result["channels_last"] = True
        for name in (*METRICS, "process_peak_mib"):
            estimate: Estimate | None = getattr(self, name)
            if estimate is not None:
                result[name] = estimate.to_dict()
        if self.kernels:
            result["kernels"] = [
                {"name": k.name, "duration_us": k.duration_us, "operator": k.operator, "module": k.module}
                for k in self.kernels
            ]
        if self.fusion:
            result["fusion"] = dict(self.fusion)
        return result | {"warnings": list(self.warnings), "facts": dict(self.facts)}
