"""Workflows: a workload as the others on its GPU feel it, for whoever predicts slowdowns: share, pack and advise."""

from dataclasses import replace
from typing import TYPE_CHECKING

from foretell.devices import Device
from foretell.errors import InputError
from foretell.records import Estimate, Workload
from foretell.units import seconds_from_ms, us
from foretell.workflows.workload import choose_predictor

if TYPE_CHECKING:
    from foretell.predictors.sharing.jobs import Job
    from foretell.predictors.sharing.model import SharingModel


def measured_model(device: Device) -> "SharingModel | None":
    """The model of sharing that was fitted to this device; None where nobody measured how it is shared."""
    from foretell.predictors.sharing.model import shipped  # imports numpy, which would slow down the start

    return shipped(device.id)


def describe_launches(
    model: "SharingModel",
    workload: Workload,
    percentage: float | None = None,
    predictor: str | None = None,
    measured_ms: float | None = None,
) -> "Job":
    """The launches of a workload on the whole device; ``percentage`` is its limit of the SMs under MPS.

    Where its latency alone was measured, all its units are as much longer or shorter as their sum is off.
    """
    from foretell.features import extract_units
    from foretell.features.pooled import DistinctUnits
    from foretell.predictors.slices.model import UnitTimePredictor

    target = replace(workload.target, slice=None)
    whole, selected = replace(workload, target=target), choose_predictor(predictor, target)
    if not isinstance(selected, UnitTimePredictor):
        raise InputError("Sharing needs a predictor of units of work; leave out --predictor.")
    units = DistinctUnits.of(extract_units(whole))
    if not len(units):
        raise InputError(f"{workload.graph.name} computes nothing, so nothing can be shared.")
    times_us = selected.unit_times_us(whole, units)
    if measured_ms is not None:
        times_us = times_us * (us(seconds_from_ms(measured_ms)) / float(times_us @ units.counts))
    return model.job(units.features, units.counts, times_us, (percentage or 100) / 100)


def are_cores_measured() -> bool:
    """Whether anybody measured how processes share the cores of a CPU."""
    from foretell.predictors.sharing.cores import shipped

    return shipped() is not None


def core_slowdowns(processes: int) -> tuple[Estimate, ...]:
    """How many times slower each of some processes is on two cores of a CPU that they share."""
    from foretell.predictors.sharing.cores import shipped

    model = shipped()
    assert model is not None
    return (model.slowdown(processes),) * processes
