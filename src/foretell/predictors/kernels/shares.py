"""Predictors: the time that each class of kernel takes in a workload."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from foretell.features import Units, extract_units
from foretell.features.layouts import operand_layouts
from foretell.features.pooled import DistinctUnits
from foretell.predictors.kernels.classes import OTHER
from foretell.predictors.kernels.classifier import KernelClassifier, shipped
from foretell.predictors.kernels.inputs import kernel_inputs
from foretell.records import KernelShare, Target, Workload

UNKNOWN = f"{OTHER} {OTHER}"
_SHOWN_OPERATORS = 3


def classifier_for(target: Target) -> tuple[KernelClassifier | None, str | None]:
    """The classifier of a device, and a warning where there is none or where other kernels may run."""
    classifier = shipped(target.device.id)
    if classifier is None:
        return None, (
            f"No classes of kernels are known for {target.device.id}: "
            f"they come from its traces: foretell train -p kernel-classes -d {target.device.id}."
        )
    if target.runtime not in ("cuda-graph", "eager"):
        return (
            classifier,
            f"The classes of kernels are those of eager PyTorch; under the runtime {target.runtime} other kernels run.",
        )
    return classifier, None


def likeliest(
    workload: Workload, units: Units, distinct: DistinctUnits, classifier: KernelClassifier
) -> list[tuple[str, float]]:
    """The likeliest class of the main kernel of each distinct unit, and its probability.

    On a slice the classes are those of the whole device, because only whole devices were traced.
    """
    whole_device = replace(workload, target=replace(workload.target, slice=None))
    if workload.target.slice is not None:
        units = extract_units(whole_device)
    first = distinct.first
    rows = operand_layouts(whole_device, units)[first]
    ranked = classifier.rank(kernel_inputs(units.features[first], rows, workload.is_training), 1)
    best = zip(ranked.classes[:, 0].tolist(), ranked.probability[:, 0].tolist(), strict=True)
    return [(classifier.classes[number] if number >= 0 else UNKNOWN, probability) for number, probability in best]


def kernel_shares(
    units: Units,
    distinct: DistinctUnits,
    spent: NDArray[np.float64],
    kernels: Sequence[tuple[str, float]],
    latency_ms: float,
) -> tuple[KernelShare, ...]:
    """One row for each class, longest first; ``spent`` is the time of all units equal to a distinct one."""
    operators = [units.operators[position] for position in distinct.first.tolist()]
    rows: dict[str, list[int]] = {}
    for number, (name, _) in enumerate(kernels):
        rows.setdefault(name, []).append(number)
    shares, total = [], float(spent.sum())
    for name, members in rows.items():
        by_operator: dict[str, float] = {}
        for number in members:
            by_operator[operators[number]] = by_operator.get(operators[number], 0.0) + float(spent[number])
        operators_by_time = sorted(by_operator, key=lambda operator: -by_operator[operator])
        share = sum(by_operator.values()) / total
        probability = sum(float(spent[number]) * kernels[number][1] for number in members) / (share * total)
        count = int(sum(distinct.counts[number] for number in members))
        shares.append(
            KernelShare(
                name, tuple(operators_by_time[:_SHOWN_OPERATORS]), count, latency_ms * share, share, probability
            )
        )
    return tuple(sorted(shares, key=lambda row: -row.latency_ms))
