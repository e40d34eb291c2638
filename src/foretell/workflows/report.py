"""Workflows: make the content of a report, from one graph. A part that cannot be made is left out, with the reason."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from foretell.advisors.batch import saturations
from foretell.advisors.placement import Choice, Requirements
from foretell.devices import Device, device_of
from foretell.errors import ForetellError, GraphError, InputError, ModelError
from foretell.graph import Graph, parse_dtype
from foretell.graph.memory.liveness import state_bytes
from foretell.graph.memory.training import optimizer_states
from foretell.predictors.kernels.shares import classifier_for
from foretell.records import Prediction, Target
from foretell.rendering.html.report_content import (
    ADVICE,
    BATCHES,
    KERNELS,
    ROOFLINE,
    AdviceRow,
    AdviceTable,
    FrontPoint,
    MemoryParts,
    Report,
    Row,
)
from foretell.units import mib
from foretell.workflows.advise import Renting, TrainingChoice, advise_serving, advise_training, considered
from foretell.workflows.predict import predict
from foretell.workflows.report_provenance import provenance, remaking_command
from foretell.workflows.roofline import roofline
from foretell.workflows.sweep import ALL, devices_named, sweep
from foretell.workflows.workload import InputShape, has_batch, load_graph, read_configuration, read_input_shape

COMPARED = ("b200", "h200", "h100-sxm", "a100-sxm-80gb", "l40s", "rtx-4090", "l4", "t4")
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
STEPS = 100_000
_SHOWN_FRONT = 12

OnPart = Callable[[str], None]
Part = TypeVar("Part")
Errors = tuple[type[ForetellError], ...]
_PART_ERRORS: Errors = (ModelError, GraphError)


def gather(
    model: Any,
    *,
    device: str | Device = "h200",
    batch_size: int = 1,
    input_shape: InputShape = None,
    dtype: str = "fp32",
    mode: str = "inference",
    optimizer: str | None = None,
    context: int | None = None,
    devices: Sequence[str | Device] | None = None,
    requirements: Requirements | None = None,
    renting: Renting | None = None,
    name: str | None = None,
    trust: bool = False,
    allow_unknown: bool = False,
    use_cache: bool = True,
    memory_limit_gib: float | None = None,
    timeout_s: float | None = None,
    on_part: OnPart = lambda _: None,
) -> Report:
    """Make the content of a report about a model.

    Args:
        model: As `foretell.predict` takes it.
        device: The device that most of the report is about.
        batch_size: Items in a batch.
        input_shape: Shape of the input without the batch; a dictionary if there are several inputs.
        dtype: fp32, fp16, bf16, …; in training fp16 and bf16 mean autocast.
        mode: inference, training, prefill or decode.
        optimizer: sgd (momentum) or adamw, in training.
        context: Tokens already in the cache, when decoding.
        devices: Devices to compare and to advise on; ``all`` means every GPU. By default a few are compared, and the
            advice considers all.
        requirements: The requirements for the advice: latency, rate, budget.
        renting: Where to look for instances.
        name: The name of the model on the page; by default that of ``model``.
        trust: Allow code that comes with the model to run.
        allow_unknown: Count operators of unknown domains by the bytes they move.
        use_cache: Store the converted graph for the next call.
        memory_limit_gib: Memory that reading a file may take; 8 GiB by default.
        timeout_s: Seconds that reading a file may take; 300 by default.
        on_part: Called with the name of the part that is being made.

    >>> from foretell.testing import tiny_onnx
    >>> report = gather(tiny_onnx(), device="a100", devices=["a100", "t4"])
    >>> [row.name for row in report.devices], report.advice.rows[0].place
    (['NVIDIA A100-SXM4-40GB', 'Tesla T4'], 'a100-sxm-40gb')
    """
    place = device_of(device)
    compared = _compared(place, devices)
    requirements, renting = requirements or Requirements(), renting or Renting()
    if mode == "training" and _limits(requirements):
        raise InputError("Limits of latency, rate, budget and batch size are for serving: leave them out for training.")
    everywhere = (ALL,) if devices is None else devices
    considered(everywhere, renting)
    read_configuration(device=place, batch_size=batch_size, dtype=dtype, mode=mode, optimizer=optimizer)
    on_part("Reading the model")
    graph = load_graph(
        model, input_shape=input_shape, batch_size=batch_size, mode=mode, context=context, trust=trust,
        allow_unknown=allow_unknown, use_cache=use_cache,
        memory_limit_gib=memory_limit_gib, timeout_s=timeout_s,
    )  # fmt: skip
    on_part(f"Predicting on {place.id}")
    # All parts below use this graph, so the model is read only once.
    setting: dict[str, Any] = {"mode": mode, "optimizer": optimizer}
    prediction = predict(graph, device=place, batch_size=batch_size, dtype=dtype, explain="kernels", **setting)
    missing: dict[str, str] = {}
    if not prediction.kernels:
        why = classifier_for(Target(place))[1] or "No unit of work of this model runs a kernel."
        missing[KERNELS] = why
        # The section of the kernels shows the reason, so it is removed from the warnings.
        prediction = replace(prediction, warnings=tuple(text for text in prediction.warnings if text != why))
    on_part("Drawing the roofline")
    roofs = _try_part(
        missing,
        ROOFLINE,
        lambda: roofline(graph, device=place, batch_size=batch_size, dtype=dtype, **setting),
        (*_PART_ERRORS, InputError),  # a model that does no work has nothing to draw
    )
    on_part("Trying batch sizes")
    batches = _try_part(missing, BATCHES, lambda: _batches(graph, place, batch_size, dtype, setting)) or ()
    on_part("Comparing devices")
    rows = _devices(graph, compared, batch_size, dtype, setting, missing)
    on_part("Looking for places to run it")
    advice = _try_part(missing, ADVICE, lambda: _advice(graph, everywhere, prediction, requirements, renting))
    options = {
        "--device": place.id, "--batch-size": batch_size, "--input": _input_texts(input_shape),
        "--dtype": prediction.dtype, "--mode": mode if mode != "inference" else None, "--optimizer": optimizer,
        "--context": context, "--devices": ",".join(_id(device) for device in devices or ()),
        "--slo-ms": requirements.slo_ms, "--rate": requirements.rate_per_s,
        "--budget": requirements.budget_usd_per_h, "--max-batch": requirements.max_batch,
        "--clouds": ",".join(renting.clouds),
        "--region": renting.region, "--country": renting.country, "--pue": renting.pue,
        "--market": renting.market if renting.market == "spot" else None, "--prices": renting.prices,
        "--trust": trust, "--allow-unknown": allow_unknown, "--memory-limit": memory_limit_gib, "--timeout": timeout_s,
    }  # fmt: skip
    command = remaking_command(name or (str(model) if isinstance(model, str | Path) else None), options)
    return Report(
        name=name or _name_of(model, graph),
        device_name=place.name,
        prediction=prediction,
        memory=_memory(prediction, graph),
        provenance=provenance(graph, prediction, advice.rows if advice else (), renting, command),
        batches=batches,
        devices=rows,
        advice=advice,
        roofline=roofs,
        missing=missing,
        saturation=" ".join(found.sentence for found in saturations(row.prediction for row in batches)),
    )


def _name_of(model: Any, graph: Graph) -> str:
    """The name of a file, a spec as it is, or the name of the graph of an object."""
    if not isinstance(model, str | Path):
        return graph.name
    return Path(model).name if Path(model).exists() else str(model)


def _input_texts(shape: InputShape) -> list[str]:
    """Inputs as ``--input`` takes them."""
    specs = read_input_shape(shape)
    return [f"{f'{spec.name}=' if spec.name else ''}{spec}{f':{spec.dtype}' if spec.dtype else ''}" for spec in specs]


def _id(device: str | Device) -> str:
    return device.id if isinstance(device, Device) else device


def _try_part(
    missing: dict[str, str], name: str, make: Callable[[], Part], errors: Errors = _PART_ERRORS
) -> Part | None:
    """Make a part of the report; if that fails, record why in ``missing``. Errors of the user are still raised."""
    try:
        return make()
    except errors as error:
        missing[name] = str(error)
        return None


def _compared(place: Device, devices: Sequence[str | Device] | None) -> list[Device]:
    """The devices to compare, including that of the report, without repetitions."""
    selected = [device for device_or_name in devices or COMPARED for device in devices_named(device_or_name)]
    own = [] if place in selected else [place]
    return list(dict.fromkeys([*own, *selected]))


def _batches(graph: Graph, place: Device, batch_size: int, dtype: str, setting: Mapping[str, Any]) -> tuple[Row, ...]:
    sizes = sorted({*BATCH_SIZES, batch_size}) if has_batch(graph) else [batch_size]
    points = sweep(graph, devices=[place], batch_sizes=sizes, dtypes=[dtype], **setting)
    return tuple(Row(point.prediction, str(point.prediction.batch_size), point.fits) for point in points)


def _devices(
    graph: Graph,
    devices: Sequence[Device],
    batch_size: int,
    dtype: str,
    setting: Mapping[str, Any],
    missing: dict[str, str],
) -> tuple[Row, ...]:
    """One row for each device. If one fails, only its row is missing, with the reason under its name."""

    def rows_on(place: Device) -> list[Row]:
        points = sweep(graph, devices=[place], batch_sizes=[batch_size], dtypes=[dtype], **setting)
        return [Row(point.prediction, place.name, point.fits) for point in points]

    return tuple(row for place in devices for row in _try_part(missing, place.name, partial(rows_on, place)) or ())


def _memory(prediction: Prediction, graph: Graph) -> MemoryParts | None:
    """The predicted memory by use. What is neither weights nor optimizer state counts as activations and workspaces."""
    capacity_mib, peak = prediction.facts.get("memory_capacity_mib"), prediction.memory_mib
    if not capacity_mib or peak is None:
        return None
    training = prediction.mode == "training"
    # autocast stores the weights in fp32
    stored_graph = graph if training else graph.with_dtype(parse_dtype(prediction.dtype))
    parts = {"weights": mib(state_bytes(stored_graph))}
    if training:
        parts["optimizer"] = mib(sum(optimizer_states(graph, prediction.optimizer or "sgd")))
    own = "gradients, activations, workspaces" if training else "activations, workspaces"
    parts[own] = max(0.0, peak.value - sum(parts.values()))
    need = prediction.device_memory_mib or peak
    if prediction.device_memory_mib is not None:
        # The memory of the process includes the driver's context, the peak of the allocator does not.
        parts["context of the driver"] = need.value - peak.value
    return MemoryParts(tuple(parts.items()), need, capacity_mib)


def _advice(
    graph: Graph,
    devices: Sequence[str | Device],
    prediction: Prediction,
    requirements: Requirements,
    renting: Renting,
) -> AdviceTable:
    if prediction.mode == "training":
        trained = advise_training(
            graph, STEPS, renting, devices=devices, batch_size=prediction.batch_size, dtype=prediction.dtype,
            optimizer=prediction.optimizer or "sgd",
        )  # fmt: skip
        rows = [_training_row(choice) for choice in trained.choices]
        refused = tuple((refusal.place, refusal.reason) for refusal in trained.refused)
        return AdviceTable(f"{STEPS:,} steps", _best(rows), refused)
    placement = advise_serving(graph, requirements, renting, devices=devices, dtype=prediction.dtype, mig=False)
    front = [
        FrontPoint(
            choice.candidate.latency_ms.value,
            choice.value,
            f"{choice.candidate.place}, batch {choice.candidate.batch_size}",
        )
        for choice in placement.front[:_SHOWN_FRONT]
    ]
    rows = [_serving_row(choice) for choice in placement.choices]
    refused = tuple((refusal.place, refusal.reason) for refusal in placement.refused)
    return AdviceTable("a million inferences", _best(rows), refused, tuple(front), _limits(requirements))


def _limits(requirements: Requirements) -> tuple[str, ...]:
    """The requirements in words."""
    limits = (
        (requirements.slo_ms, "a latency of {:g} ms at most"),
        (requirements.rate_per_s, "{:g} requests a second"),
        (requirements.budget_usd_per_h, "{:g} $/h at most"),
        (requirements.max_batch, "batches of {:g} at most"),
    )
    return tuple(text.format(limit) for limit, text in limits if limit is not None)


def _serving_row(choice: Choice) -> AdviceRow:
    candidate, cost = choice.candidate, choice.cost
    return AdviceRow(
        candidate.place, choice.offer.name, 0, candidate.batch_size, candidate.latency_ms,
        choice.usd_per_million, choice.kwh_per_million,
        cost.kg_co2e_per_million, not candidate.calibrated, None, choice.fleet.instances if choice.fleet else None,
        choice.at_risk, choice.offer.note,
    )  # fmt: skip


def _training_row(choice: TrainingChoice) -> AdviceRow:
    prediction, cost = choice.prediction, choice.cost
    assert prediction.latency_ms is not None
    return AdviceRow(
        prediction.device, choice.offer.name, 0, prediction.batch_size, prediction.latency_ms, cost.usd, cost.kwh,
        cost.kg_co2e, prediction.extrapolated, cost.hours, note=choice.offer.note,
    )  # fmt: skip


def _best(rows: Sequence[AdviceRow]) -> tuple[AdviceRow, ...]:
    """The best instance of each place, which comes first in ``rows``, and the number of its others."""
    by_place: dict[str, list[AdviceRow]] = {}
    for row in rows:
        by_place.setdefault(row.place, []).append(row)
    return tuple(replace(own[0], others=len(own) - 1) for own in by_place.values())
