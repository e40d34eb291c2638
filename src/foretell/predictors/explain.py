"""Predictors: explanation: which units of work take the time of a workload, and how far each is from its bound."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from foretell.features import Units, extract_units
from foretell.features.pooled import DistinctUnits
from foretell.graph import Graph
from foretell.predictors.kernels.classifier import KernelClassifier
from foretell.predictors.kernels.shares import kernel_shares, likeliest
from foretell.predictors.protocol import Predictor
from foretell.records import KernelShare, UnitShare, Workload
from foretell.units import seconds_from_ms, us

MAX_ROWS = 20


def explain(
    workload: Workload,
    predictor: Predictor,
    latency_ms: float,
    most: int = MAX_ROWS,
    classifier: KernelClassifier | None = None,
) -> tuple[UnitShare, ...]:
    """One row for all equal units, longest first; with a classifier, each has the likeliest class of its kernel.

    Where the predictor does not predict units (the roofline), the analytic bounds divide the latency.
    """
    units = _units_of(workload, predictor)
    if not len(units):
        return ()
    distinct = DistinctUnits.of(units)
    unit_us, is_predicted = unit_times(workload, predictor, distinct)
    spent_us = unit_us * distinct.counts
    shares = spent_us / spent_us.sum()
    first = distinct.first.tolist()
    kernels = likeliest(workload, units, distinct, classifier) if classifier else [(None, None)] * len(distinct)
    rows = []
    for row in np.argsort(-spent_us, kind="stable")[:most].tolist():
        operator, module, shapes = _named(units, first[row], workload.running_graph)
        over_bound = float(unit_us[row] / distinct.bound_us[row]) if is_predicted else None
        share = float(shares[row])
        count = int(distinct.counts[row])
        rows.append(UnitShare(operator, module, shapes, count, latency_ms * share, share, over_bound, *kernels[row]))
    return tuple(rows)


def explain_kernels(
    workload: Workload, predictor: Predictor, latency_ms: float, classifier: KernelClassifier
) -> tuple[KernelShare, ...]:
    """One row for all units whose main kernel is likely of one class, longest first."""
    units = _units_of(workload, predictor)
    if not len(units):
        return ()
    distinct = DistinctUnits.of(units)
    spent_us = unit_times(workload, predictor, distinct)[0] * distinct.counts
    return kernel_shares(units, distinct, spent_us, likeliest(workload, units, distinct, classifier), latency_ms)


def _units_of(workload: Workload, predictor: Predictor) -> Units:
    """The units that run; a predictor of a runtime that fuses operators knows which do."""
    units: Units = getattr(predictor, "units_of", extract_units)(workload)
    return units


def unit_times(workload: Workload, predictor: Predictor, distinct: DistinctUnits) -> tuple[NDArray[np.float64], bool]:
    """The time of each distinct unit, and whether the predictor predicted it; else it is the bound."""
    predict_units = getattr(predictor, "unit_times_us", None)
    return (predict_units(workload, distinct), True) if predict_units else (distinct.bound_us, False)


def timeline(
    workload: Workload, predictor: Predictor, latency_ms: float, classifier: KernelClassifier | None = None
) -> dict[str, object]:
    """All units one after the other, as a trace that Chrome and Perfetto open; they add up to ``latency_ms``."""
    units = _units_of(workload, predictor)
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": f"{workload.target.device.id}, predicted"}}
    ]
    if len(units):
        distinct = DistinctUnits.of(units)
        unit_us = unit_times(workload, predictor, distinct)[0][distinct.member]
        # the correction of the whole is spread over all units in proportion
        unit_us = unit_us * (us(seconds_from_ms(latency_ms)) / unit_us.sum())
        starts_us = np.cumsum(unit_us) - unit_us
        kernels = likeliest(workload, units, distinct, classifier) if classifier else []
        for position, (start_us, took_us) in enumerate(zip(starts_us.tolist(), unit_us.tolist())):
            operator, module, shapes = _named(units, position, workload.running_graph)
            event = {"ph": "X", "cat": units.phases[position], "pid": 0, "tid": 0, "ts": start_us, "dur": took_us}
            details: dict[str, object] = {"module": module, "shapes": shapes}
            if kernels:
                details["kernel"], details["probability"] = kernels[int(distinct.member[position])]
            events.append({"name": operator, **event, "args": details})
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _named(units: Units, position: int, graph: Graph) -> tuple[str, str, str]:
    """The name of a unit, its module, and the shapes of its operands and of its result."""
    phase = units.phases[position]
    operator = units.operators[position] + (" (backward)" if phase == "backward" else "")
    if not units.nodes[position]:
        return operator, "", ""
    nodes = [graph.nodes[number] for number in units.nodes[position]]
    # a unit is named after one of its nodes: show that node's shapes
    main = next((node for node in nodes if node.op == units.operators[position]), nodes[0])
    read = [graph.tensors[name].shape for name in main.inputs[:2] if name]
    written = [graph.tensors[name].shape for name in main.outputs[:1] if name]
    shapes = f"{', '.join(map(_text, read))} → {', '.join(map(_text, written))}"
    return operator, main.module or main.name, shapes


def _text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "1"
