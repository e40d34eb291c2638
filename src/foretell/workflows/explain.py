"""workflows: which units of work take the time of a workload, and how far each is from what the device could do."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from foretell.features import Units, extract_units
from foretell.features.pooled import DistinctUnits
from foretell.graph import Graph
from foretell.predictors import Predictor
from foretell.records import UnitShare, Workload

MOST = 20


def explain(workload: Workload, predictor: Predictor, latency_ms: float, most: int = MOST) -> tuple[UnitShare, ...]:
    """Equal units as one row, most time first.

    Where the predictor tells no times of units (the roofline), the analytic bound of each is its part of the whole.
    """
    units = extract_units(workload)
    if not len(units):
        return ()
    distinct = DistinctUnits.of(units)
    tell = getattr(predictor, "unit_times_us", None)
    unit_us: NDArray[np.float64] = tell(workload, distinct) if tell else distinct.bound_us
    spent = unit_us * distinct.counts
    shares = spent / spent.sum()
    first = {int(member): position for position, member in reversed(list(enumerate(distinct.member)))}
    rows = []
    for row in np.argsort(-spent, kind="stable")[:most].tolist():
        operator, module, shapes = _named(units, first[row], workload.running_graph)
        over = float(unit_us[row] / distinct.bound_us[row]) if tell else None
        share = float(shares[row])
        rows.append(UnitShare(operator, module, shapes, int(distinct.counts[row]), latency_ms * share, share, over))
    return tuple(rows)


def _named(units: Units, position: int, graph: Graph) -> tuple[str, str, str]:
    """What a unit is called, the module it is of, and the shapes of its operands and result."""
    phase = units.phases[position]
    operator = units.operators[position] + (" (backward)" if phase == "backward" else "")
    if not units.nodes[position]:
        return operator, "", ""
    nodes = [graph.nodes[each] for each in units.nodes[position]]
    telling = next((node for node in nodes if node.op == units.operators[position]), nodes[0])
    read = [graph.tensors[name].shape for name in telling.inputs[:2] if name]
    written = [graph.tensors[name].shape for name in telling.outputs[:1] if name]
    shapes = f"{', '.join(map(_text, read))} → {', '.join(map(_text, written))}"
    return operator, telling.module or telling.name, shapes


def _text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "1"
