"""Workflows: what the jobs of a file demand of the places of a cluster: from the numbers given, or by prediction."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from foretell.devices import Device
from foretell.errors import DataError, ForetellError, InputError
from foretell.graph import graph_costs
from foretell.records import Prediction
from foretell.scheduling.cluster import PlaceKind
from foretell.scheduling.inputs.job_file import JobSpec
from foretell.scheduling.jobs import Demand, Profile
from foretell.units import bytes_per_s, seconds_from_ms
from foretell.workflows.workload import Configuration, choose_predictor, load_graph, read_configuration

_FEW_SMS = "mps:25"
_FEW = 0.25
_TRAINING_BYTES = 3  # forward, backward to the inputs, backward to the weights
_OPTIONS = ("batch_size", "dtype", "mode", "optimizer")


def read_profiles(
    specs: Sequence[JobSpec], kinds: Sequence[PlaceKind], reading: Mapping[str, Any]
) -> tuple[list[Profile], list[str]]:
    """The profile of every job and what to warn of; ``reading`` has the options of `load_graph`.

    Options are checked before any model is read.
    """
    for spec in specs:
        if spec.model is not None:
            for kind in kinds:
                _configuration(spec, kind.device, kind.slice.text if kind.slice else None)
    profiles: list[Profile] = []
    warnings: list[str] = []
    for number, spec in enumerate(specs):
        demands = _given(spec, kinds) if spec.model is None else _predicted(spec, kinds, reading, warnings)
        fitting = {kind.name: demands[kind.name] for kind in kinds if _fits(demands[kind.name], kind)}
        if not fitting:
            least = min(demand.memory_mib for demand in demands.values())
            most = max(kind.memory_mib for kind in kinds)
            raise InputError(
                f"Job {spec.name!r} fits nowhere: it needs {least:,.0f} MiB, and the largest place has {most:,.0f}."
            )
        profiles.append(Profile(number, spec.name, fitting, spec.max_slowdown, spec.limit_ms))
    return profiles, list(dict.fromkeys(warnings))


def _fits(demand: Demand, kind: PlaceKind) -> bool:
    return demand.memory_mib <= kind.memory_mib


def _given(spec: JobSpec, kinds: Sequence[PlaceKind]) -> dict[str, Demand]:
    whole = Demand(**spec.numbers)
    return {kind.name: _on_slice(whole, kind) for kind in kinds}


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


def _predicted(
    spec: JobSpec, kinds: Sequence[PlaceKind], reading: Mapping[str, Any], warnings: list[str]
) -> dict[str, Demand]:
    graph = load_graph(
        spec.model, input_shape=spec.options.get("input"), mode=str(spec.options.get("mode", "inference")),  # type: ignore[arg-type]
        context=spec.options.get("context"), **reading,  # type: ignore[arg-type]
    )  # fmt: skip

    def ask(device: Device, part: str | None) -> tuple[Prediction, float]:
        configuration = _configuration(spec, device, part)
        workload = configuration.workload(graph)
        prediction = choose_predictor(None, configuration.target).predict(workload)
        if prediction.latency_ms is None:
            raise InputError(f"Job {spec.name!r}: no predictor knows its latency on {device.id}.")
        if prediction.extrapolated:
            where = f"{device.id} {part}" if part else device.id
            warnings.append(f"Times on {where} are extrapolated: no predictor was fitted to measurements there.")
        moved = graph_costs(workload.running_graph).total.bytes * (_TRAINING_BYTES if workload.is_training else 1)
        return prediction, moved / bytes_per_s(device.bandwidth_gb_per_s)

    wholes: dict[str, Demand] = {}
    demands = {}
    for kind in kinds:
        device = kind.device
        if device.id not in wholes:
            whole, least_s = ask(device, None)
            wholes[device.id] = _whole(spec, whole, least_s, ask(device, _FEW_SMS)[0], warnings)
        if kind.slice is None:
            demands[kind.name] = wholes[device.id]
        else:
            part, _ = ask(device, kind.slice.text)
            on_slice = _on_slice(wholes[device.id], kind, _latency_ms(part))
            demands[kind.name] = replace(on_slice, memory_mib=spec.numbers.get("memory_mib", _memory_mib(part)))
    return demands


def _whole(spec: JobSpec, whole: Prediction, least_s: float, few: Prediction, warnings: list[str]) -> Demand:
    """The demand at a whole device.

    The share of the SMs is what a job could do with: on a quarter of them it takes ``r`` times as long, so that it
    needs about ``r / 4`` of them. A replayed step leaves no gaps, so its utilisation is 1.
    """
    latency_ms = _latency_ms(whole)
    numbers = {
        "memory_mib": _memory_mib(whole),
        "sm_share": min(1.0, max(_FEW, _FEW * _latency_ms(few) / latency_ms)),
        "bandwidth_share": min(1.0, least_s / seconds_from_ms(latency_ms)),
    }
    if whole.occupancy is not None:
        numbers["occupancy"] = min(1.0, whole.occupancy.value / 100)
    elif "occupancy" not in spec.numbers:
        warnings.append("Occupancy is not predicted here: occupancy packing counts 100 % for models.")
    return Demand(latency_ms, **(numbers | dict(spec.numbers)))


def _latency_ms(prediction: Prediction) -> float:
    assert prediction.latency_ms is not None
    return prediction.latency_ms.value


def _memory_mib(prediction: Prediction) -> float:
    """What a process takes, at the upper end of its interval: a job that does not fit dies."""
    memory = prediction.device_memory_mib or prediction.memory_mib
    return 0.0 if memory is None else memory.high


def _configuration(spec: JobSpec, device: Device, part: str | None) -> Configuration:
    options = {name: spec.options[name] for name in _OPTIONS if name in spec.options}
    try:
        for name in ("dtype", "mode", "optimizer"):
            if name in options and not isinstance(options[name], str):
                raise DataError(f"{name} is {options[name]!r}; it must be text in quotes")
        return read_configuration(device=device, slice=part, **options)  # type: ignore[arg-type]
    except ForetellError as error:
        raise InputError(f"Job {spec.name!r}: {error}") from error
