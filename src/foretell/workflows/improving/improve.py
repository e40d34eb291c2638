"""Workflows: improve: make each change that might help, predict the changed workload, and rank what it gains."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from foretell.advisors.improvement import (
    ACCURACIES,
    CORRELATIONS,
    LEAST_GAIN,
    OBJECTIVES,
    Accuracy,
    Change,
    Improvement,
    Objective,
    explain_change,
    gain_of,
    rank,
    shared_share,
)
from foretell.advisors.mig import check_latency_limit
from foretell.devices import Device, find_device
from foretell.errors import InputError
from foretell.features import COLUMNS, extract_units
from foretell.features.pooled import DistinctUnits
from foretell.predictors.explain import unit_times
from foretell.predictors.host_latency import with_host_latency
from foretell.records import Estimate, Prediction, Workload
from foretell.registry import did_you_mean
from foretell.workflows.improving.places import Place, Prices, Rent, other_devices, other_offers, slices
from foretell.workflows.improving.steps import Step, batch_step, steps_for
from foretell.workflows.measure.calibrate import read_calibration
from foretell.workflows.workload import (
    COMPILED,
    CUDA_GRAPH,
    EAGER,
    InputShape,
    choose_predictor,
    load_graph,
    read_configuration,
)

MAX_BATCH = 256
_ENOUGH = 0.95  # of the highest throughput: the smallest batch that reaches it is suggested
_HOST_CORRELATION = (
    0.9  # of two eager runs that the same host bounds: its speed, the largest error, is the same in both
)
_OF_THE_UNIT = [at for at, name in enumerate(COLUMNS) if not name.endswith("_in_all")]  # others describe the workload
_SHOWN_DEVICES = 3
_STACKED = ("precision", "layout", "graph", "runtime", "compiler", "batch")


def improve(
    model: Any,
    *,
    by: Objective = "latency",
    accuracy: Accuracy = "retraining",
    device: str | Device = "h200",
    batch_size: int = 1,
    input_shape: InputShape = None,
    dtype: str = "fp32",
    mode: str = "inference",
    runtime: str = CUDA_GRAPH,
    slice: str | None = None,
    optimizer: str | None = None,
    channels_last: bool = False,
    latency_limit_ms: float | None = None,
    max_batch: int = MAX_BATCH,
    devices: Sequence[str] | None = None,
    region: str | None = None,
    prices: Path | str | None = None,
    predictor: str | None = None,
    context: int | None = None,
    trust: bool = False,
    allow_unknown: bool = False,
    use_cache: bool = True,
    memory_limit_gib: float | None = None,
    timeout_s: float | None = None,
) -> Improvement:
    """Find what would make a model faster, smaller or cheaper, and by how much.

    Args:
        model: As `foretell.predict` takes it.
        by: What shall improve: ``latency`` of a batch, ``throughput``, peak ``memory``, or ``usd``.
        accuracy: The most that a change may cost: ``none``, ``numerics`` (another precision) or ``retraining``.
        device: A name from the catalogue, in any usual spelling.
        batch_size: Items in a batch.
        input_shape: Shape of the input without the batch; a dictionary if there are several inputs.
        dtype: The precision as it is now.
        mode: inference, training, prefill or decode.
        runtime: What drives the device now: ``cuda-graph``, ``eager`` or ``compiled``.
        slice: The part of the device that it has now.
        optimizer: sgd (momentum) or adamw, in training.
        channels_last: Whether model and images are channels-last now.
        latency_limit_ms: The longest latency allowed; what takes longer is rejected.
        max_batch: The largest batch size to try.
        devices: Other GPUs to try; all that are rented out by default.
        region: The cloud region where it runs now.
        prices: A file of your own prices.
        predictor: The name of a predictor, or a file of ``foretell train``; the best one for each device by default.
        context: Tokens already in the cache, when decoding.
        trust: Allow code that comes with the model to run.
        allow_unknown: Count operators of unknown domains by the bytes they move.
        use_cache: Store the converted graph for the next call.
        memory_limit_gib: Memory that reading a file may take; 8 GiB by default.
        timeout_s: Seconds that reading a file may take; 300 by default.

    >>> from foretell.testing import tiny_onnx
    >>> answer = improve(tiny_onnx(), by="throughput", devices=[])
    >>> answer.changes[0].name, answer.changes[0].gains["throughput"].low > 1
    ('batch 256', True)
    """
    for name, value, choices in (("objective", by, OBJECTIVES), ("cost in accuracy", accuracy, ACCURACIES)):
        if value not in choices:
            raise InputError(f"Unknown {name} {value!r}.{did_you_mean(str(value), choices)}")
    check_latency_limit(latency_limit_ms)
    configuration = read_configuration(
        device=device, slice=slice, runtime=runtime, batch_size=batch_size, dtype=dtype, mode=mode, optimizer=optimizer,
        channels_last=channels_last,
    )  # fmt: skip
    choose_predictor(predictor, configuration.target)
    others = None if devices is None else [find_device(name).id for name in devices]
    offers = Prices(prices, region)
    here = configuration.target.device.id
    if by == "usd" and offers.cheapest(here, region) is None:
        where = f" in {region}" if region else ""
        raise InputError(f"No price of {here}{where} is known: give --prices, or ask --by latency.")
    graph = load_graph(
        model, input_shape=input_shape, batch_size=configuration.batch_size, mode=mode, context=context, trust=trust,
        allow_unknown=allow_unknown, use_cache=use_cache, memory_limit_gib=memory_limit_gib, timeout_s=timeout_s,
    )  # fmt: skip
    limits = Limits(by, latency_limit_ms, accuracy, max_batch)
    return improve_workload(configuration.workload(graph), limits, offers, others, predictor)


@dataclass(frozen=True, slots=True)
class Limits:
    """What shall improve, and what is not allowed."""

    objective: Objective = "latency"
    latency_ms: float | None = None
    accuracy: Accuracy = "retraining"
    max_batch: int = MAX_BATCH


def improve_workload(
    workload: Workload, limits: Limits, offers: Prices, devices: Sequence[str] | None, predictor: str | None = None
) -> Improvement:
    """Like `improve`, for a workload that was read already."""
    rent = offers.cheapest(workload.target.device.id, offers.region)
    search = _Search(workload, predictor, rent, limits)
    for step in steps_for(workload):
        search.try_step(step)
    if limits.objective in ("throughput", "usd"):
        search.try_batches()
    search.try_places(offers, devices)
    changes, rejected = rank(search.found, limits.objective)
    notes = (*search.notes, *_price_note(rent, offers.region, limits.objective))
    return Improvement(search.before, limits.objective, changes, rejected, search.together(changes), notes)


class _Search:
    """One workload as it is, and the changes of it that were tried."""

    def __init__(self, workload: Workload, predictor: str | None, rent: Rent | None, limits: Limits) -> None:
        self.workload = workload
        self.rent = rent
        self.limits = limits
        self.found: list[Change] = []
        self.notes: list[str] = []
        self._predictor = predictor
        self._steps: dict[str, Step] = {}
        self.before = self._predict(workload)
        if self.before.latency_ms is None:
            raise InputError(f"The predictor {self.before.predictor!r} does not predict latency: choose another one.")

    def try_step(self, step: Step) -> None:
        """Make a change, predict, and note what it gains."""
        if ACCURACIES.index(step.accuracy) > ACCURACIES.index(self.limits.accuracy):
            return
        changed = step.apply(self.workload)
        if changed is None:
            return
        try:
            after = self._predict(changed)
        except InputError as error:  # such as a compiler that was not measured on this device
            self.notes.append(f"{step.name} was not tried: {error}")
            return
        self._steps[step.name] = step
        gains = self._gains(changed, after, self._correlation(step.kind, changed, after))
        why = _launching(self.before) if step.kind == "runtime" else explain_change(self.before, after)
        self._add(Change(step.name, step.kind, step.accuracy, step.how, why, after, gains))

    def try_batches(self) -> None:
        """Try larger batches, and keep the smallest that comes close to the highest throughput."""
        most = self.limits.max_batch
        sizes = [size for power in range(most.bit_length()) if self.workload.batch_size < (size := 1 << power) <= most]
        outside = len(self.found)
        for size in sizes:
            self.try_step(batch_step(size))
        tried, self.found = self.found[outside:], self.found[:outside]
        possible = [change for change in tried if not change.reason]
        if possible:
            best = max(change.gains["throughput"].value for change in possible)
            self.found.append(next(one for one in possible if one.gains["throughput"].value >= _ENOUGH * best))
        # the first batch that is too large says where the limit is
        self.found += [change for change in tried if change.reason][:1]

    def try_places(self, offers: Prices, devices: Sequence[str] | None) -> None:
        """Try other GPUs, and where cost or throughput counts, slices, regions and markets."""
        objective = self.limits.objective
        if objective == "memory" or self.workload.target.device.is_cpu:
            return
        outside = len(self.found)
        for place in other_devices(self.workload, offers, devices):
            self._try_place(place)
        ranked, rest = rank(self.found[outside:], objective)
        # a table of all slower GPUs helps nobody who did not ask for them
        self.found[outside:] = (*ranked[:_SHOWN_DEVICES], *(() if devices is None else rest))
        if objective in ("throughput", "usd") and self.workload.target.runtime != COMPILED:
            for place in slices(self.workload, self.rent):
                self._try_place(place)
        if objective == "usd" and self.rent is not None:
            for place in other_offers(self.workload, offers, self.rent):
                self._try_place(place)

    def _try_place(self, place: Place) -> None:
        same = place.workload is self.workload
        try:
            after = self.before if same else self._predict(place.workload)
        except InputError:
            return  # a runtime that was not measured there
        if after.latency_ms is None:
            return
        gains = self._gains(place.workload, after, 1.0 if same else 0.0, place.rent, place.copies)
        if self.limits.objective not in gains:
            return
        why = "" if same else self._why_there(place, after)
        self._add(Change(place.name, place.kind, "none", place.how, why, after, gains))

    def _why_there(self, place: Place, after: Prediction) -> str:
        """What a batch takes at another place, and what an hour there costs."""
        on_each = f" on each of {place.copies} slices" if place.copies > 1 else ""
        why = f"A batch takes {_time(place.workload, after).value:.3g} ms{on_each} instead of {self._time.value:.3g}"
        if self.rent is None or place.rent is None or place.rent == self.rent:
            return why
        return f"{why}, an hour ${place.rent.usd_per_h:.2f} instead of ${self.rent.usd_per_h:.2f}"

    def together(self, changes: Sequence[Change]) -> Change | None:
        """The changes that help, one on top of the other, as long as each still helps; None where one is all."""
        objective, workload, after = self.limits.objective, self.workload, self.before
        parts: list[Change] = []
        for change in changes:
            step = self._steps.get(change.name)
            taken = any(part.kind == change.kind and change.kind in ("precision", "batch") for part in parts)
            if step is None or taken or change.kind not in _STACKED or change.accuracy == "retraining":
                continue
            changed = step.apply(workload)
            if changed is None:
                continue
            try:
                better = self._predict(changed)
            except InputError:
                continue
            # on top of the others it may gain less, or make the whole less certain
            times = _time(workload, after), _time(changed, better)
            marginal = gain_of(*times, CORRELATIONS.get(change.kind, 0.0))
            if objective == "memory" and after.memory_mib and better.memory_mib:
                marginal = gain_of(after.memory_mib, better.memory_mib, CORRELATIONS.get(change.kind, 0.0))
            elif objective in ("throughput", "usd"):
                marginal = marginal.scaled(better.batch_size / after.batch_size)
            if not parts or (marginal.value >= LEAST_GAIN and marginal.low > 1.0):
                workload, after = changed, better
                parts.append(change)
        if len(parts) < 2:
            return None
        correlation = min(CORRELATIONS.get(part.kind, 0.0) for part in parts)
        gains = self._gains(workload, after, correlation)
        dearest = max((part.accuracy for part in parts), key=ACCURACIES.index)
        how = "; ".join(part.how for part in parts)
        name = " + ".join(part.name for part in parts)
        return Change(name, "together", dearest, how, explain_change(self.before, after), after, gains)

    def _add(self, change: Change) -> None:
        self.found.append(replace(change, reason=self._why_not(change)))

    def _why_not(self, change: Change) -> str:
        """The reason why a change is rejected; "" where it is not."""
        limits, after = self.limits, change.after
        need, capacity = after.device_memory_mib or after.memory_mib, after.facts.get("memory_capacity_mib")
        if need is not None and capacity and need.high > capacity:
            return f"memory: it may need {need.high:,.0f} of {capacity:,.0f} MiB"
        time_ms = (after.host_latency_ms or after.latency_ms) if after.runtime == EAGER else after.latency_ms
        if limits.latency_ms is not None and time_ms is not None and time_ms.value > limits.latency_ms:
            return f"latency: {time_ms.value:.3g} ms; the limit is {limits.latency_ms:g} ms"
        gain = change.gains[limits.objective].value
        if gain < LEAST_GAIN:
            words = {"latency": "slower", "throughput": "fewer a second", "memory": "larger", "usd": "dearer"}
            worse = gain < 1 / LEAST_GAIN
            return f"{words[limits.objective]}: {gain:.2f} ×" if worse else "no gain"
        return ""

    @property
    def _time(self) -> Estimate:
        return _time(self.workload, self.before)

    def _gains(
        self, workload: Workload, after: Prediction, correlation: float, rent: Rent | None = None, copies: int = 1
    ) -> Mapping[str, Estimate]:
        """What changes by objective: before over after."""
        latency = gain_of(self._time, _time(workload, after), correlation)
        throughput = latency.scaled(after.batch_size * copies / self.before.batch_size)
        gains = {"latency": latency, "throughput": throughput}
        if self.before.memory_mib is not None and after.memory_mib is not None:
            gains["memory"] = gain_of(self.before.memory_mib, after.memory_mib, max(correlation, 0.0))
        elsewhere = workload.target.device.id != self.workload.target.device.id
        rent = rent if elsewhere or rent is not None else self.rent
        if self.rent is not None and rent is not None:
            gains["usd"] = throughput.scaled(self.rent.usd_per_h / rent.usd_per_h)
        return gains

    def _correlation(self, kind: str, changed: Workload, after: Prediction) -> float:
        """How much of the error both predictions share."""
        if changed.target.runtime == self.workload.target.runtime == EAGER:
            bound = [one.host_latency_ms.value > one.latency_ms.value * 1.1
                     for one in (self.before, after) if one.host_latency_ms and one.latency_ms]  # fmt: skip
            if len(bound) == 2 and all(bound):
                return _HOST_CORRELATION
        correlation = CORRELATIONS.get(kind, 0.0)
        if kind != "graph" or changed.target.runtime == COMPILED:
            return correlation
        # units that the change does not touch have the same error before and after
        shared = shared_share(self._unit_times(self.workload), self._unit_times(changed))
        return correlation + (1.0 - correlation) * shared

    def _unit_times(self, workload: Workload) -> dict[bytes, float]:
        """The time of all equal units of a workload, by their features."""
        distinct = DistinctUnits.of(extract_units(workload))
        times_us, _ = unit_times(workload, choose_predictor(self._predictor, workload.target), distinct)
        spent = (times_us * distinct.counts).tolist()
        times: dict[bytes, float] = {}
        for row, time_us in zip(distinct.features[:, _OF_THE_UNIT], spent, strict=True):
            times[row.tobytes()] = times.get(row.tobytes(), 0.0) + time_us
        return times

    def _predict(self, workload: Workload) -> Prediction:
        # a predictor that was named was named for this device: another device gets its best one
        named = self._predictor if workload.target.device.id == self.workload.target.device.id else None
        selected = choose_predictor(named, workload.target)
        if workload.target.runtime == COMPILED:
            from foretell.training.compiled import on_compile

            selected = on_compile(selected, workload.target.device.id)
        return with_host_latency(selected.predict(workload), workload, read_calibration())


def _time(workload: Workload, prediction: Prediction) -> Estimate:
    """How long a run takes: wall-clock where the host launches every kernel, device time elsewhere."""
    time_ms = prediction.latency_ms
    if workload.target.runtime == EAGER and prediction.host_latency_ms is not None:
        time_ms = prediction.host_latency_ms
    assert time_ms is not None
    return time_ms


def _launching(prediction: Prediction) -> str:
    """What the host does while the device waits."""
    host, device = prediction.host_latency_ms, prediction.latency_ms
    if host is None or device is None:
        return ""
    return f"The host takes {host.value:.3g} ms to launch what the GPU does in {device.value:.3g} ms"


def _price_note(rent: Rent | None, region: str | None, objective: Objective) -> tuple[str, ...]:
    if objective != "usd" or rent is None:
        return ()
    where = f"{rent.instance} in {rent.region}: ${rent.usd_per_h:.2f} a GPU and hour"
    return (f"Compared with {where}" + ("." if region else ", the cheapest known; --region says where you are."),)
