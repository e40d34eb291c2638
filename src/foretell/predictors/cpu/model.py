"""Predictors: cpu: a CPU that runs a model by ONNX Runtime or on two threads, from eager PyTorch on one thread.

Idea. Eager PyTorch on one thread was measured most, so its trees know a unit's time best. Another run takes a multiple
of that time, and the multiple is what is learned here: on two threads it depends on how long a unit is and on what it
computes, under ONNX Runtime on which operator it is. So the model is that of `foretell.predictors.unit.model`, fitted
in the same way, with another bound: in place of the roofline's time of a unit stands the time that the trees of one
thread give it.

ONNX Runtime runs some operators as part of others: batch norms and activations in convolutions, sums in blocked
convolutions, activations in products. Which ones the partitioner predicts (`foretell.predictors.fusion`). A unit that
is absorbed has no time of its own.

Two threads are at most twice as fast as one: one thread was measured beside other work, two threads were not, so that
some convolutions came out faster than that. Where an answer is below half of the time on one thread, that half is the
value, and the interval holds both.

Limits: inference in fp32, one kind of processor. Memory is that of eager PyTorch.
"""

from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from foretell.devices.cpu_runs import ONE_THREAD, ONNX_RUNTIME, OTHERS, CpuRun
from foretell.errors import InputError, ModelError
from foretell.features import Units, extract_units
from foretell.features.pooled import DistinctUnits
from foretell.features.schema import KINDS
from foretell.features.units import COLUMNS
from foretell.predictors.fitted_files import read_shipped
from foretell.predictors.fusion.partitioner import Partitioner
from foretell.predictors.slices.model import UnitTimePredictor
from foretell.predictors.unit.model import UnitModel
from foretell.predictors.unit.pace import core_note
from foretell.predictors.unit.predictor import Described, UnitPredictor, stand_in
from foretell.records import Prediction, Workload
from foretell.units import ms, seconds_from_us

NAME = "cpu-runs"
AS_EAGER = "Of ONNX Runtime only times were measured: memory is that of eager PyTorch."
_KIND = COLUMNS.index("kind")
# what no other operator absorbs, whatever the partitioner says: it takes nearly all of the time
_NEVER_ABSORBED = tuple(KINDS.index(name) for name in ("contraction", "attention", "recurrent"))


class CpuRunPredictor(UnitPredictor):
    """Predicts one kind of run from a predictor of eager PyTorch on one thread."""

    name = NAME

    def __init__(self, eager: UnitTimePredictor, model: UnitModel, run: CpuRun, notes: tuple[str, ...] = ()) -> None:
        super().__init__(model)
        self._eager = eager
        self._run = run
        self._further = notes

    def units_of(self, workload: Workload) -> Units:
        """The units that run."""
        return units_of(workload, self._run)

    def _asked(self, workload: Workload, units: DistinctUnits) -> DistinctUnits:
        return on_eager(units, self._eager.unit_times_us(workload, units))

    def _notes(self, workload: Workload) -> tuple[str, ...]:  # noqa: ARG002 the run says it all
        memory = (AS_EAGER,) if self._run.runtime == ONNX_RUNTIME else ()
        return (core_note(self._run), *memory, *self._further)

    def _describe(self, workload: Workload, model: UnitModel) -> Described | Prediction:
        # the roofline, which answers elsewhere, knows one core and no runtime
        if stand_in(workload, model.card["settings"]) is None:
            measured = ", ".join(model.card["settings"])
            raise InputError(f"{self._run} was measured in {measured}, not in {workload.mode} {workload.dtype}.")
        described = super()._describe(workload, model)
        if self._run.runtime == ONNX_RUNTIME or not isinstance(described, Described):
            return described
        # one thread was measured beside other work and two were not: a multiple below the share of the cores is doubted
        units = described.question[0]
        one_ms = ms(seconds_from_us(float(units.counts @ units.bound_us)))
        return replace(described, likely_ms=one_ms / self._run.threads)


def on_eager(units: DistinctUnits, eager_us: NDArray[np.float64]) -> DistinctUnits:
    """Units with the time that each takes on one thread of eager PyTorch in place of their bound."""
    return replace(units, bound_us=eager_us)


def units_of(workload: Workload, run: CpuRun) -> Units:
    """The units that run: under ONNX Runtime without those that others absorb."""
    units = extract_units(workload)
    if run.runtime != ONNX_RUNTIME or not len(units):
        return units
    return select(units, np.flatnonzero(owners(workload, units) == np.arange(len(units))))


def owners(workload: Workload, units: Units) -> NDArray[np.intp]:
    """For each unit the one that runs it under ONNX Runtime: itself, or the longest one of its kernel."""
    kernel = _partitioner().partition(workload.running_graph, ONNX_RUNTIME).groups
    owner = np.arange(len(units))
    members: dict[int, list[int]] = {}
    for number, nodes in enumerate(units.nodes):
        # a unit of several nodes, such as an attention, may lie in several kernels: it is part of its last node's
        if nodes:
            members.setdefault(kernel[nodes[-1]], []).append(number)
    stays = np.isin(units.features[:, _KIND], _NEVER_ABSORBED)
    for together in members.values():
        main = max(together, key=lambda number: (bool(stays[number]), float(units.bound_us[number])))
        for number in together:
            owner[number] = number if stays[number] else main
    return owner


def select(units: Units, kept: NDArray[np.intp]) -> Units:
    """Some of the units, in their order."""
    return Units(
        tuple(units.operators[number] for number in kept),
        tuple(units.phases[number] for number in kept),
        tuple(units.nodes[number] for number in kept),
        units.features[kept],
        units.bound_us[kept],
        np.arange(len(kept)),
    )


@cache
def _partitioner() -> Partitioner:
    """The shipped partitioner; reading it takes longer than using it."""
    return Partitioner.shipped()


@cache
def shipped(run: CpuRun) -> UnitModel:
    """The model that the package ships for a run; refuse a damaged file."""
    data = read_shipped(run.file)
    if data is None:
        raise ModelError(f"The package lacks {run.file}: install foretell again, or leave out --runtime and --threads.")
    return UnitModel.load(data)


def on_run(predictor: object, run: CpuRun, notes: tuple[str, ...] = ()) -> CpuRunPredictor:
    """The predictor of a run, from one of eager PyTorch on one thread; ``notes`` go into its answers."""
    if run not in OTHERS:
        known = "; ".join(map(str, (ONE_THREAD, *OTHERS)))
        raise InputError(f"Nothing was measured of {run} on cpu, only of: {known}.")
    if not isinstance(predictor, UnitTimePredictor):
        raise InputError(f"Latency of {run} needs a predictor that predicts units: leave out --predictor.")
    return CpuRunPredictor(predictor, shipped(run), run, notes)
