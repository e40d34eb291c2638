"""Workflows: predict how two or three models slow each other down on one GPU, or on two cores of a CPU."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from typing import TYPE_CHECKING, Any

from foretell.devices import Device, find_device
from foretell.errors import DeviceError, InputError
from foretell.readable import Readable, spell
from foretell.records import Estimate, Prediction, Workload
from foretell.registry import did_you_mean
from foretell.units import bytes_from_gib, mib
from foretell.workflows.sharing.launches import are_cores_measured, core_slowdowns, describe_launches, measured_model
from foretell.workflows.workload import InputShape, choose_predictor, load_graph, read_configuration

if TYPE_CHECKING:
    from foretell.predictors.sharing.model import SharingModel

MPS, TIME_SLICING, CORES = "mps", "time-slicing", "cores"
METHODS = (MPS, TIME_SLICING, CORES)
COUNTS = (2, 3)
_MEASURED_ON = "h200"  # other GPUs are predicted as if they shared like this one
_OTHER_DEVICE_WIDTH = 0.3  # log slowdown: sharing was not measured on other devices, so their intervals are wider
_USUAL_RATIO = 1.5  # a measured latency that is so many times the predicted one, or a part of it, is told
_SATURATED = "Each job is taken to run without a pause; one that waits for requests disturbs less."


@dataclass(frozen=True)
class SharedJob:
    """One of the models: alone, under its own limit of the SMs and under MPS if that is the method, and beside others.

    ``together_ms`` and ``slowdown`` are None if the models do not fit; ``keeps_limit`` is None without a limit.
    """

    model: str
    batch_size: int
    dtype: str
    mode: str
    alone_ms: Estimate
    together_ms: Estimate | None = None
    slowdown: Estimate | None = None
    percentage: float | None = None
    limit_ms: float | None = None
    keeps_limit: bool | None = None
    device_memory_mib: Estimate | None = None

    def to_dict(self) -> dict[str, Any]:
        """The job as JSON has it; what is not known is absent."""
        known = {name: value for name, value in vars(self).items() if value is not None}
        return {name: value.to_dict() if isinstance(value, Estimate) else value for name, value in known.items()}


@dataclass(frozen=True, repr=False)
class Sharing(Readable):
    """Models on one GPU at the same time.

    ``memory_mib`` is what they take together. ``throughput_gain`` is the work done per second, divided by that of
    running them one after the other on the whole GPU.
    """

    device: str
    method: str
    fits: bool
    jobs: tuple[SharedJob, ...]
    memory_mib: Estimate | None = None
    throughput_gain: Estimate | None = None
    extrapolated: bool = False
    warnings: tuple[str, ...] = ()

    def heading(self) -> str:
        """The models, the device and the method."""
        return f"Sharing: {' + '.join(job.model for job in self.jobs)} on {self.device}, {self.method}"

    def lines(self) -> Iterator[tuple[str, str]]:
        """Each job, then what they do together."""
        for number, job in enumerate(self.jobs, start=1):
            if job.slowdown is None or job.together_ms is None:
                text = f"{spell(job.alone_ms)} ms alone"
            else:
                text = f"{spell(job.slowdown)} times slower: {job.alone_ms.value:.3g} → {spell(job.together_ms)} ms"
            if job.keeps_limit is not None:
                text += f", {'keeps' if job.keeps_limit else 'breaks'} its limit of {job.limit_ms:g} ms"
            yield f"{number} {job.model}", text
        yield "fits", "yes" if self.fits else "no"
        if self.memory_mib is not None:
            yield "memory_mib", spell(self.memory_mib)
        if self.throughput_gain is not None:
            yield "throughput_gain", spell(self.throughput_gain)
        yield from (("warning", warning) for warning in self.warnings)

    def rows(self) -> list[dict[str, Any]]:
        """One flat row for each job."""
        rows = []
        for job in self.jobs:
            row: dict[str, Any] = {"device": self.device, "method": self.method}
            for name, value in vars(job).items():
                if isinstance(value, Estimate):
                    row |= {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}
                else:
                    row[name] = value
            rows.append(row)
        return rows

    def to_dict(self) -> dict[str, Any]:
        """The object that ``foretell share --json`` prints: what is not known is absent."""
        result: dict[str, Any] = {
            "device": self.device,
            "method": self.method,
            "fits": self.fits,
            "jobs": [job.to_dict() for job in self.jobs],
        }
        for name in ("memory_mib", "throughput_gain"):
            estimate: Estimate | None = getattr(self, name)
            if estimate is not None:
                result[name] = estimate.to_dict()
        return result | {"extrapolated": self.extrapolated, "warnings": list(self.warnings)}


def share(
    models: Sequence[Any],
    *,
    device: str | Device = "h200",
    method: str | None = None,
    batch_sizes: int | Sequence[int] = 1,
    dtypes: str | Sequence[str] = "fp32",
    modes: str | Sequence[str] = "inference",
    limits_ms: float | Sequence[float] | None = None,
    measured_ms: Sequence[float | None] | None = None,
    percentages: float | Sequence[float] | None = None,
    input_shapes: InputShape | Sequence[InputShape] = None,
    optimizer: str | None = None,
    context: int | None = None,
    predictor: str | None = None,
    trust: bool = False,
    allow_unknown: bool = False,
    use_cache: bool = True,
    memory_limit_gib: float | None = None,
    timeout_s: float | None = None,
) -> Sharing:
    """Predict how two or three models run on one device at the same time. One value of an option serves all models.

    Args:
        models: Two or three models, each as for `foretell.predict`.
        device: A GPU of the catalogue, or cpu.
        method: ``mps``, the default on a GPU: NVIDIA's Multi-Process Service; ``time-slicing``: without it, one process
            at a time; ``cores``, the only one on a CPU: processes of one thread each on two cores.
        batch_sizes: Items in a batch.
        dtypes: fp32, tf32, fp16, bf16, …
        modes: inference, training, prefill or decode.
        limits_ms: The longest latency that each model may have.
        measured_ms: The latency of each model alone on the whole device, where you measured it (without gaps between
            runs, and without MPS); None where not. It replaces the predicted one, and scales what others feel of it.
        percentages: ``CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`` of each model, under MPS.
        input_shapes: Shape of the input without the batch; a list with one of them for each model.
        optimizer: sgd (momentum) or adamw, for the models in training.
        context: Tokens already in the cache, when decoding.
        predictor: The name of a predictor; the best one for the device by default.
        trust: Allow code that comes with a model to run.
        allow_unknown: Count operators of unknown domains by the bytes they move instead of refusing them.
        use_cache: Store the converted graphs for the next call.
        memory_limit_gib: Memory that reading a file may take; 8 GiB by default.
        timeout_s: Seconds that reading a file may take; 300 by default.

    >>> from foretell.testing import tiny_onnx
    >>> both = share([tiny_onnx(), tiny_onnx()], method="time-slicing", batch_sizes=8)
    >>> both.fits, [job.slowdown.value > 2 for job in both.jobs]
    (True, [True, True])
    """
    if isinstance(models, (str, bytes)) or len(models) not in COUNTS:
        count = 1 if isinstance(models, (str, bytes)) else len(models)
        raise InputError(f"Got {count} model{'' if count == 1 else 's'}; two or three can share a GPU here.")
    count = len(models)
    if method is not None and method not in METHODS:
        raise InputError(f"Unknown method {method!r}.{did_you_mean(method, METHODS)}")
    if method not in (None, MPS) and percentages is not None:
        raise InputError("Percentages are limits of MPS: leave them out, or use the method mps.")
    sizes, numbers = for_each(batch_sizes, count, "batch sizes"), for_each(dtypes, count, "dtypes")
    limits = [_check_limit(limit) for limit in for_each(limits_ms, count, "limits")]
    known_ms = _check_measured(measured_ms, count)
    parts = [_check_percentage(part) for part in for_each(percentages, count, "percentages")]
    shapes = _shapes_of(input_shapes, count)
    configurations = [
        read_configuration(
            device=device, slice=None if part is None or part == 100 else f"mps:{part:g}", batch_size=size,
            dtype=dtype, mode=mode, optimizer=optimizer if mode == "training" else None,
        )
        for part, size, dtype, mode in zip(parts, sizes, numbers, for_each(modes, count, "modes"), strict=True)
    ]  # fmt: skip
    place = configurations[0].target.device
    method = method or (CORES if place.is_cpu else MPS)
    _check_method(place, method)
    model, is_measured = (None, True) if place.is_cpu else _sharing_model(place)
    workloads = [
        configuration.workload(
            load_graph(
                one, input_shape=shape, batch_size=configuration.batch_size, mode=configuration.mode,
                context=context if configuration.mode == "decode" else None, trust=trust, allow_unknown=allow_unknown,
                use_cache=use_cache, memory_limit_gib=memory_limit_gib, timeout_s=timeout_s,
            )
        )
        for one, shape, configuration in zip(models, shapes, configurations, strict=True)
    ]  # fmt: skip
    alone = [choose_predictor(predictor, workload.target).predict(workload) for workload in workloads]
    whole = [_on_whole_device(predictor, *pair) for pair in zip(workloads, alone, strict=True)]
    warnings = list(dict.fromkeys(warning for prediction in alone for warning in prediction.warnings))
    warnings += [
        f"{prediction.model} was measured at {known:.4g} ms and predicted at {told.value:.4g}: do they mean the same?"
        for prediction, told, known in zip(alone, whole, known_ms, strict=True)
        if known is not None and not 1 / _USUAL_RATIO <= known / told.value <= _USUAL_RATIO
    ]
    jobs = [
        SharedJob(
            prediction.model, configuration.batch_size, configuration.dtype, configuration.mode,
            _as_measured(_latency(prediction), told, known, part), percentage=part, limit_ms=limit,
            device_memory_mib=prediction.device_memory_mib,
        )
        for prediction, configuration, part, limit, told, known in zip(
            alone, configurations, parts, limits, whole, known_ms, strict=True
        )
    ]  # fmt: skip
    predicted = list(zip(whole, map(_latency, alone), strict=True))
    whole = [_as_measured(told, told, known, None) for told, known in zip(whole, known_ms, strict=True)]
    memory, capacity_mib = _memory(alone), place.memory_mib or mib(bytes_from_gib(place.memory_gib))
    if memory is not None and memory.value > capacity_mib:
        warnings.append(
            f"They do not fit: they need about {memory.value:,.0f} MiB, and {place.id} has {capacity_mib:,.0f}."
        )
        return Sharing(place.id, method, False, tuple(jobs), memory, warnings=tuple(warnings))
    if memory is not None and memory.high > capacity_mib:
        warnings.append(f"They may need {memory.high:,.0f} MiB, more than the {capacity_mib:,.0f} that {place.id} has.")
    if memory is None:
        warnings.append("The predictor does not know the memory, so nothing says whether they fit.")
    if model is None:
        slowdowns = core_slowdowns(count)
        warnings.append("Each has one thread, and they share two cores; two threads of one core share more.")
    else:
        members = [
            describe_launches(model, workload, part, predictor, known)
            for workload, part, known in zip(workloads, parts, known_ms, strict=True)
        ]
        if method == MPS:
            added = [0.0 if _is_limited(job) else member.mps_ms for job, member in zip(jobs, members, strict=True)]
            jobs = [
                _under_mps(job, *latencies, member.mps_ms)
                for job, latencies, member in zip(jobs, predicted, members, strict=True)
            ]
            if any(added):
                spelled = ", ".join(f"{each_ms:.2g}" for each_ms in added)
                warnings.append(
                    f"Alone means alone under MPS, which makes every launch longer: {spelled} ms are added here."
                )
        slowdowns = model.slowdowns(members, method)
    if not is_measured:
        slowdowns = tuple(_widened(slowdown, _OTHER_DEVICE_WIDTH) for slowdown in slowdowns)
        warnings.append(f"Sharing was measured on {_MEASURED_ON}, not on {place.id}: the intervals are wider.")
    shared = tuple(starmap(_together, zip(jobs, slowdowns, strict=True)))
    extrapolated = not is_measured or any(prediction.extrapolated for prediction in alone)
    return Sharing(place.id, method, True, shared, memory, _gain(whole, shared), extrapolated, (*warnings, _SATURATED))


def for_each(values: Any, count: int, what: str) -> list[Any]:
    """An option for each model: one value serves all.

    >>> for_each(8, 2, "batch sizes"), for_each([1, 8], 2, "batch sizes"), for_each("fp16", 2, "dtypes")
    ([8, 8], [1, 8], ['fp16', 'fp16'])
    """
    listed = list(values) if isinstance(values, (list, tuple)) else [values]
    if len(listed) not in (1, count):
        raise InputError(f"Got {len(listed)} {what} for {count} models; give one for all, or one for each.")
    return listed * count if len(listed) == 1 else listed


def _shapes_of(shapes: Any, count: int) -> list[InputShape]:
    """A shape for each model; a list of numbers is one shape for all."""
    is_list = isinstance(shapes, (list, tuple)) and not all(isinstance(size, int) for size in shapes)
    return for_each(shapes, count, "input shapes") if is_list else [shapes] * count


def _check_limit(limit_ms: float | None) -> float | None:
    if limit_ms is not None and not (isinstance(limit_ms, (int, float)) and 0 < limit_ms < math.inf):
        raise InputError(f"The limit is {limit_ms} ms; it must be a positive number.")
    return limit_ms


def _check_measured(measured_ms: Sequence[float | None] | None, count: int) -> list[float | None]:
    """A measured latency for each model, or None; one for all would be wrong for all but one of them."""
    if measured_ms is None:
        return [None] * count
    if not isinstance(measured_ms, (list, tuple)) or len(measured_ms) != count:
        raise InputError(f"Give a measured latency for each of the {count} models; - or None for one that has none.")
    for time_ms in measured_ms:
        if time_ms is not None and not (isinstance(time_ms, (int, float)) and 0 < time_ms < math.inf):
            raise InputError(f"The measured latency is {time_ms} ms; it must be a positive number.")
    return list(measured_ms)


def _as_measured(
    alone_ms: Estimate, whole_ms: Estimate, measured_ms: float | None, percentage: float | None
) -> Estimate:
    """The latency alone, where that on the whole device was measured: a limit of the SMs keeps its predicted ratio."""
    if measured_ms is None:
        return alone_ms
    if percentage is None or percentage == 100:
        return Estimate(measured_ms, measured_ms, measured_ms)
    return alone_ms.scaled(measured_ms / whole_ms.value)


def _check_percentage(percentage: float | None) -> float | None:
    if percentage is not None and not (isinstance(percentage, (int, float)) and 0 < percentage <= 100):
        raise InputError(f"The percentage is {percentage}; it must be above 0 and at most 100.")
    return percentage


def _check_method(device: Device, method: str) -> None:
    if device.is_cpu and method != CORES:
        raise DeviceError(f"{method} is a way to share a GPU, and {device.id} is a CPU: leave it out, or use cores.")
    if not device.is_cpu and method == CORES:
        raise DeviceError(f"{device.id} is a GPU; models share it by {MPS} or {TIME_SLICING}.")
    if device.is_cpu and not are_cores_measured():
        raise DeviceError(f"{device.id} is a CPU, and nobody measured how models share it: see foretell devices.")


def _sharing_model(device: Device) -> tuple["SharingModel", bool]:
    """The model of sharing for a GPU, and whether it was fitted to that GPU."""
    if device.vendor.lower() != "nvidia":
        raise DeviceError(f"MPS and time-slicing are NVIDIA's, and {device.id} is not: see foretell devices.")
    own = measured_model(device)
    model = own or measured_model(find_device(_MEASURED_ON))
    if model is None:
        raise DeviceError(f"No model of sharing was fitted to {device.id}; fit one: foretell train -p sharing.")
    return model, own is not None


def _on_whole_device(predictor: str | None, workload: Workload, alone: Prediction) -> Estimate:
    """The latency without a limit of the SMs."""
    if workload.target.slice is None:
        return _latency(alone)
    target = replace(workload.target, slice=None)
    return _latency(choose_predictor(predictor, target).predict(replace(workload, target=target)))


def _latency(prediction: Prediction) -> Estimate:
    if prediction.latency_ms is None:
        raise InputError(f"The predictor {prediction.predictor!r} does not predict latency; leave out --predictor.")
    return prediction.latency_ms


def _memory(predictions: Sequence[Prediction]) -> Estimate | None:
    """What all processes take together; each has a context of its own."""
    total = Estimate(0.0, 0.0, 0.0)
    for prediction in predictions:
        if prediction.device_memory_mib is None:
            return None
        total = total + prediction.device_memory_mib
    return total


def slowed_down(alone_ms: Estimate, slowdown: Estimate) -> Estimate:
    """A latency beside others; the errors of latency and slowdown are independent, so their squares add."""
    value = alone_ms.value * slowdown.value
    below = math.hypot(math.log(alone_ms.value / alone_ms.low), math.log(slowdown.value / slowdown.low))
    above = math.hypot(math.log(alone_ms.high / alone_ms.value), math.log(slowdown.high / slowdown.value))
    return Estimate(value, value * math.exp(-below), value * math.exp(above))


def _is_limited(job: SharedJob) -> bool:
    return job.percentage is not None and job.percentage < 100


def _under_mps(job: SharedJob, whole_ms: Estimate, limited_ms: Estimate, added_ms: float) -> SharedJob:
    """The job alone, with what MPS adds to its launches; the time under a limit of the SMs has that already.

    The two come from different fits, so that nine tenths of the SMs could come out faster than all of them. Their
    predicted ratio decides, so that a measured latency keeps it.
    """
    alone = job.alone_ms
    if _is_limited(job):
        return replace(job, alone_ms=alone.scaled(max(1.0, (whole_ms.value + added_ms) / limited_ms.value)))
    return replace(job, alone_ms=Estimate(alone.value + added_ms, alone.low + added_ms, alone.high + added_ms))


def _together(job: SharedJob, slowdown: Estimate) -> SharedJob:
    """The job beside the others."""
    together = slowed_down(job.alone_ms, slowdown)
    keeps = None if job.limit_ms is None else together.value <= job.limit_ms
    return replace(job, together_ms=together, slowdown=slowdown, keeps_limit=keeps)


def _gain(whole: Sequence[Estimate], jobs: Sequence[SharedJob]) -> Estimate:
    """The sum of what each job gets done, as a share of what it does alone on the whole GPU.

    S. Eyerman, L. Eeckhout: System-level performance metrics for multiprogram workloads, IEEE Micro 2008 (STP).
    """
    parts = []
    for full, job in zip(whole, jobs, strict=True):
        assert job.slowdown is not None
        # the latency of the whole device cancels out: only the ratio to it counts
        parts.append(job.slowdown.scaled(job.alone_ms.value / full.value).inverted())
    return Estimate(*(sum(getattr(part, end) for part in parts) for end in ("value", "low", "high")))


def _widened(slowdown: Estimate, width: float) -> Estimate:
    log = math.log(slowdown.value)
    below, above = log - math.log(slowdown.low), math.log(slowdown.high) - log
    return Estimate(
        slowdown.value,
        math.exp(max(log - math.hypot(below, width), 0.0)),
        math.exp(log + math.hypot(above, width)),
    )
