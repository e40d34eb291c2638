"""Workflows: what the jobs of a file demand of the places of a cluster: from the numbers given, or by prediction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from foretell.devices import Device
from foretell.errors import DataError, ForetellError, InputError
from foretell.graph import graph_costs
from foretell.records import Prediction, Workload
from foretell.scheduling.cluster import EXCLUSIVE, MPS, PlaceKind
from foretell.scheduling.inputs.job_file import JobSpec
from foretell.scheduling.jobs import Demand, Profile
from foretell.units import bytes_per_s, seconds_from_ms
from foretell.workflows.sharing.group_slowdowns import MeasuredDevice
from foretell.workflows.sharing.launches import describe_launches, measured_model
from foretell.workflows.workload import Configuration, choose_predictor, load_graph, read_configuration

_FEW_SMS = "mps:25"
_FEW = 0.25
_TRAINING_BYTES = 3  # forward, backward to the inputs, backward to the weights
_MOST_NAMED = 3
_OPTIONS = ("batch_size", "dtype", "mode", "optimizer")


@dataclass(frozen=True)
class ReadJobs:
    """The profile of every job, the devices whose sharing was measured (by name), and what to warn of."""

    profiles: list[Profile]
    devices: dict[str, MeasuredDevice]
    warnings: list[str]


def read_profiles(specs: Sequence[JobSpec], kinds: Sequence[PlaceKind], reading: Mapping[str, Any]) -> ReadJobs:
    """What the jobs demand of every kind of place; ``reading`` has the options of `load_graph`.

    Options are checked before any model is read.
    """
    for spec in specs:
        if spec.percentage is not None and any(kind.slice and kind.method == MPS for kind in kinds):
            raise InputError(f"Job {spec.name!r} has a percentage: this works on whole GPUs, not on slices with MPS.")
        if spec.gpus > 1 and all(kind.slice for kind in kinds):
            raise InputError(f"Job {spec.name!r} needs {spec.gpus:,} whole GPUs, and the cluster has slices only.")
        if spec.model is not None:
            for kind in kinds:
                _configuration(spec, kind.device, _part(spec, kind))
    shared = [kind for kind in kinds if kind.method != EXCLUSIVE and kind.max_jobs > 1]
    models = {kind.device.id: measured_model(kind.device) for kind in shared}
    read = ReadJobs([], {name: MeasuredDevice(model, {}) for name, model in models.items() if model}, [])
    for number, spec in enumerate(specs):
        if spec.model is None:
            demands = _given(spec, kinds)
        else:
            demands = _PredictedJob(number, spec, reading, read).demands(kinds)
        usable = [kind for kind in kinds if spec.gpus == 1 or kind.slice is None]
        fitting = {kind.name: demands[kind.name] for kind in usable if _fits(demands[kind.name], kind)}
        if not fitting:
            least = min(demand.memory_mib for demand in demands.values())
            most = max(kind.memory_mib for kind in kinds)
            raise InputError(
                f"Job {spec.name!r} fits nowhere: it needs {least:,.0f} MiB, and the largest place has {most:,.0f}."
            )
        if spec.model is not None and spec.gpus > 1:
            read.warnings.append(
                "A step on several GPUs is taken to last as long as on one: transfers are not predicted."
            )
        profile = Profile(number, spec.name, fitting, spec.max_slowdown, spec.limit_ms, spec.percentage, spec.gpus)
        if all(profile.allowed_slowdown(demand) < 1 for demand in fitting.values()):
            read.warnings.append(f"Job {spec.name!r} breaks its limit on every place, even alone.")
        read.profiles.append(profile)
    limited = [spec.name for spec in specs if spec.percentage is not None]
    if limited and not any(kind.method == MPS for kind in kinds):
        read.warnings.append(f"No GPU is shared by MPS, so a percentage does nothing: {named(limited)}.")
    weightless = [spec.name for spec in specs if spec.model is None and "memory_mib" not in spec.numbers]
    if shared and weightless:
        read.warnings.append(f"Without memory_mib a job counts as if it took no memory: {named(weightless)}.")
    return replace(read, warnings=list(dict.fromkeys(read.warnings)))


def named(names: Sequence[str]) -> str:
    """The first names of many."""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _fits(demand: Demand, kind: PlaceKind) -> bool:
    return demand.memory_mib <= kind.memory_mib


def _part(spec: JobSpec, kind: PlaceKind) -> str | None:
    """The slice on which a job runs at a place: a MIG slice, or its limit of the SMs under MPS."""
    if kind.slice is not None:
        return kind.slice.text
    is_limited = kind.method == MPS and spec.percentage is not None and spec.percentage < 100
    return f"mps:{spec.percentage:g}" if is_limited else None


def _given(spec: JobSpec, kinds: Sequence[PlaceKind]) -> dict[str, Demand]:
    whole = Demand(**spec.numbers)
    return {
        kind.name: _limited(whole, spec) if kind.slice is None and _part(spec, kind) else _on_slice(whole, kind)
        for kind in kinds
    }


def _limited(whole: Demand, spec: JobSpec, alone_ms: float | None = None) -> Demand:
    """The demand of a job that may use only some of the SMs; without a time it lacks the SMs that it would use."""
    share = (spec.percentage or 100) / 100
    slowdown = max(1.0, whole.sm_share / share) if alone_ms is None else alone_ms / whole.alone_ms
    return replace(
        whole,
        alone_ms=whole.alone_ms * slowdown,
        slice_slowdown=slowdown,
        sm_share=min(whole.sm_share, share),
        bandwidth_share=min(1.0, whole.bandwidth_share / slowdown),
    )


def _on_slice(whole: Demand, kind: PlaceKind, alone_ms: float | None = None) -> Demand:
    """The demand of a job at a slice, from that at the whole device.

    Without a time it takes as much longer as the resource that it lacks most: it keeps its speed while its share of
    the SMs and of the bandwidth fits into the slice.
    """
    if kind.slice is None:
        return whole
    sm, bandwidth = whole.sm_share / kind.sm_fraction, whole.bandwidth_share / kind.bandwidth_fraction
    slowdown = max(1.0, sm, bandwidth) if alone_ms is None else alone_ms / whole.alone_ms
    return replace(
        whole,
        alone_ms=whole.alone_ms * slowdown,
        slice_slowdown=slowdown,
        sm_share=min(1.0, sm),
        bandwidth_share=min(1.0, bandwidth),
    )


class _PredictedJob:
    """A job with a model: what it demands is predicted, and its launches are kept where they decide slowdowns."""

    def __init__(self, number: int, spec: JobSpec, reading: Mapping[str, Any], read: ReadJobs) -> None:
        self._number, self._spec, self._read = number, spec, read
        self._graph = load_graph(
            spec.model, input_shape=spec.options.get("input"), mode=str(spec.options.get("mode", "inference")),  # type: ignore[arg-type]
            context=spec.options.get("context"), **reading,  # type: ignore[arg-type]
        )  # fmt: skip
        self._wholes: dict[str, Demand] = {}

    def demands(self, kinds: Sequence[PlaceKind]) -> dict[str, Demand]:
        """The demand at every kind of place."""
        return {kind.name: self._demand(kind) for kind in kinds}

    def _demand(self, kind: PlaceKind) -> Demand:
        part = _part(self._spec, kind)
        whole = self._whole(kind.device)
        measured = self._read.devices.get(kind.device.id) if self._spec.gpus == 1 else None
        if measured is not None and kind.slice is None and kind.method == MPS and kind.max_jobs > 1:
            job = describe_launches(measured.model, self._workload(kind.device, None), self._spec.percentage)
            measured.launches[kind.name, self._number] = job
            if part is None:
                return replace(whole, alone_ms=whole.alone_ms + job.mps_ms)
        if part is None:
            return whole
        prediction = self._predict(kind.device, part)
        if kind.slice is None:
            return _limited(whole, self._spec, _latency_ms(prediction))
        on_slice = _on_slice(whole, kind, _latency_ms(prediction))
        return replace(on_slice, memory_mib=self._spec.numbers.get("memory_mib", self._memory_mib(prediction, kind)))

    def _whole(self, device: Device) -> Demand:
        """The demand at a whole device.

        The share of the SMs is what a job could do with: on a quarter of them it takes ``r`` times as long, so that it
        needs about ``r / 4`` of them. A replayed step leaves no gaps, so its utilisation is 1.
        """
        if device.id in self._wholes:
            return self._wholes[device.id]
        whole, few, workload = (
            self._predict(device, None),
            self._predict(device, _FEW_SMS),
            self._workload(device, None),
        )
        moved = graph_costs(workload.running_graph).total.bytes * (_TRAINING_BYTES if workload.is_training else 1)
        least_s, latency_ms = moved / bytes_per_s(device.bandwidth_gb_per_s), _latency_ms(whole)
        numbers = {
            "memory_mib": self._memory_mib(whole, PlaceKind(device.id, device, None, EXCLUSIVE, 1)),
            "sm_share": min(1.0, max(_FEW, _FEW * _latency_ms(few) / latency_ms)),
            "bandwidth_share": min(1.0, least_s / seconds_from_ms(latency_ms)),
        }
        if whole.occupancy is not None:
            numbers["occupancy"] = min(1.0, whole.occupancy.value / 100)
        elif "occupancy" not in self._spec.numbers:
            self._warn(f"Occupancy is not predicted on {device.id}: occupancy packing counts 100 % for models.")
        self._wholes[device.id] = Demand(latency_ms, **(numbers | dict(self._spec.numbers)))
        return self._wholes[device.id]

    def _workload(self, device: Device, part: str | None) -> Workload:
        return _configuration(self._spec, device, part).workload(self._graph)

    def _predict(self, device: Device, part: str | None) -> Prediction:
        workload = self._workload(device, part)
        prediction = choose_predictor(None, workload.target).predict(workload)
        if prediction.latency_ms is None:
            raise InputError(f"Job {self._spec.name!r}: no predictor knows its latency on {device.id}.")
        if prediction.extrapolated:
            where = f"{device.id} {part}" if part else device.id
            self._warn(f"Times on {where} are extrapolated: no predictor was fitted to measurements there.")
        return prediction

    def _memory_mib(self, prediction: Prediction, kind: PlaceKind) -> float:
        """What a process takes, at the upper end of its interval: a job that does not fit dies."""
        memory = prediction.device_memory_mib or prediction.memory_mib
        if memory is None:
            if "memory_mib" not in self._spec.numbers:
                self._warn(f"The memory of {self._spec.name!r} on {kind.name} is not known, so it shares with nobody.")
            return kind.memory_mib
        return memory.high

    def _warn(self, warning: str) -> None:
        self._read.warnings.append(warning)


def _latency_ms(prediction: Prediction) -> float:
    assert prediction.latency_ms is not None
    return prediction.latency_ms.value


def _configuration(spec: JobSpec, device: Device, part: str | None) -> Configuration:
    options = {name: spec.options[name] for name in _OPTIONS if name in spec.options}
    try:
        for name in ("dtype", "mode", "optimizer"):
            if name in options and not isinstance(options[name], str):
                raise DataError(f"{name} is {options[name]!r}; it must be text in quotes")
        return read_configuration(device=device, slice=part, **options)  # type: ignore[arg-type]
    except ForetellError as error:
        raise InputError(f"Job {spec.name!r}: {error}") from error
