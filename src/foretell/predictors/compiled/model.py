"""Predictors: latency under ``torch.compile``: the base time of every kernel, times a fitted factor.

Base times and columns are those of `foretell.predictors.compiled.kernels`. A factor is exp(columns · weights), with one
weight a column (`foretell.predictors.compiled.fit` fits them). The base times of library kernels come from a predictor
of eager mode that predicts units. The interval is conformal: the error in log(latency) that nine in ten held-out
workloads stay below, the same for all workloads; where eager mode is less sure, its own width.

Limits: measured on an H200, in inference, on whole devices. Memory and power are those of eager mode. On a slice, the
gain of compiling is assumed to be the same as on the whole device.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.errors import InputError, ModelError
from foretell.features import extract_units
from foretell.features.pooled import DistinctUnits
from foretell.graph import Graph
from foretell.predictors.compiled.inductor import CONVOLUTIONS, is_channels_last, lower
from foretell.predictors.compiled.kernels import (
    COMPILED_COLUMNS,
    COMPILED_SCHEMA,
    CompiledKernels,
    describe_compiled,
    library_node,
)
from foretell.predictors.fitted_files import read_shipped
from foretell.predictors.options import with_options
from foretell.predictors.protocol import Predictor
from foretell.predictors.roofline import LEAST_LATENCY_MS
from foretell.predictors.slices.model import UnitTimePredictor, energy_of, on_whole_device
from foretell.records import Estimate, OperatorShare, Prediction, Workload
from foretell.units import ms, per_second, seconds_from_us

RUNTIME = "compiled"
FUSED = "generated kernels"
AS_EAGER = "Under torch.compile only times were measured: memory and power are those of eager mode."
ON_A_PART = "torch.compile was measured on whole devices: on a slice the gain is taken to be the same."
_MAX_LOG_FACTOR = 5.0  # limit of the logarithm of a factor
_TRAFFIC = COMPILED_COLUMNS.index("traffic")

FindParts = Callable[[Graph], Sequence[Sequence[int]]]
Values = NDArray[np.float64]


@dataclass(frozen=True)
class CompiledModel:
    """The model fitted to one device; ``error`` is the error in log(latency) that nine in ten stay below."""

    device: str
    weights: tuple[float, ...]
    error: float = 0.0

    @classmethod
    def load(cls, data: bytes) -> "CompiledModel":
        """Read what `write` wrote; refuse a file that was fitted to other features than today's."""
        try:
            card = json.loads(data)
            schema, fitted = card["schema"], card["fitted"]
            model = cls(str(fitted["device"]), tuple(map(float, fitted["weights"])), float(fitted["error"]))
        except (KeyError, TypeError, ValueError, UnicodeDecodeError) as error:
            raise ModelError(f"These {len(data)} bytes are not a fitted model of compiled times: {error}.") from error
        if schema != COMPILED_SCHEMA or len(model.weights) != len(COMPILED_COLUMNS):
            raise ModelError("This model of compiled times was fitted to other features; fit it again: foretell train.")
        return model

    def times_us(self, kernels: CompiledKernels) -> Values:
        """The time of each row."""
        return kernels.base_us * factors(kernels.columns, np.array(self.weights))


def factors(columns: Values, weights: Values) -> Values:
    """The factor of each row."""
    return np.asarray(np.exp(np.clip(columns @ weights, -_MAX_LOG_FACTOR, _MAX_LOG_FACTOR)))


def write(model: CompiledModel, card: dict[str, Any]) -> bytes:
    """A fitted model as one file; ``card`` says what it was fitted to and how accurate it is."""
    content = {**card, "schema": COMPILED_SCHEMA, "columns": COMPILED_COLUMNS, "fitted": asdict(model)}
    return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()


def file_name(device: str) -> str:
    """The name of the file for a device."""
    return f"compiled-{device}.json"


@cache
def shipped(device: str) -> CompiledModel | None:
    """The model that the package ships for a device, or None."""
    data = read_shipped(file_name(device))
    return None if data is None else CompiledModel.load(data)


def find_kernels(workload: Workload, eager: UnitTimePredictor, find_parts: FindParts) -> CompiledKernels:
    """The kernels of a workload on a whole device, with their base times."""
    lays_out = is_channels_last(workload.graph)
    # where Inductor lays images out itself, the same kernels run whatever the layout of the model; only copies go away
    plain = replace(workload, channels_last=False) if lays_out else workload
    lowered = replace(plain, graph=lower(workload.graph))
    units = extract_units(lowered)
    distinct = DistinctUnits.of(units)
    unit_us = eager.unit_times_us(lowered, distinct)[distinct.member] if len(units) else np.zeros(0)
    laid_out = _convolutions_us(workload, eager) if lays_out else {}
    for position, nodes in enumerate(units.nodes):
        node = library_node(lowered.graph, nodes)
        if node is not None and node.name in laid_out:
            unit_us[position] = math.sqrt(unit_us[position] * laid_out[node.name])
    return describe_compiled(workload, find_parts(workload.graph), lowered.graph, units, unit_us)


def _convolutions_us(workload: Workload, eager: UnitTimePredictor) -> dict[str, float]:
    """By name the time of each convolution in eager mode, if images lie channels-last as Inductor lays them out."""
    turned = replace(workload, channels_last=True)
    units = extract_units(turned)
    if not len(units):
        return {}
    distinct = DistinctUnits.of(units)
    times_us = eager.unit_times_us(turned, distinct)[distinct.member]
    nodes = [library_node(turned.graph, members) for members in units.nodes]
    return {
        node.name: float(time_us)
        for node, time_us in zip(nodes, times_us, strict=True)
        if node is not None and node.op in CONVOLUTIONS
    }


class CompiledPredictor:
    """A predictor of eager mode, extended to ``torch.compile``."""

    def __init__(self, eager: UnitTimePredictor, model: CompiledModel, find_parts: FindParts) -> None:
        self.eager = eager
        self.model = model
        self.find_parts = find_parts

    def predict(self, workload: Workload) -> Prediction:
        """Latency by the model; memory and power as in eager mode."""
        eager, whole_device = self.eager.predict(workload), on_whole_device(workload)
        # compiled times were fitted on whole devices: predict there, and scale to the slice
        full = eager if workload.target.slice is None else self.eager.predict(whole_device)
        if eager.latency_ms is None or full.latency_ms is None:
            return eager
        kernels = find_kernels(whole_device, self.eager, self.find_parts)
        if not len(kernels):
            return eager
        times_us = self.model.times_us(kernels)
        # on a slice: the compiled latency of the whole device, scaled as eager mode scales to the slice
        value = ms(seconds_from_us(float(times_us.sum()))) * eager.latency_ms.value / full.latency_ms.value
        # what eager mode does not know about the units, compiling does not tell
        spread = math.exp(max(self.model.error, math.log(full.latency_ms.high / full.latency_ms.value)))
        latency = Estimate(value, value / spread, value * spread)
        latency = latency.at_least(eager.facts.get(LEAST_LATENCY_MS, 0.0))
        notes = (AS_EAGER,) if workload.target.slice is None else (AS_EAGER, ON_A_PART)
        answer = replace(
            eager,
            latency_ms=latency,
            eager_latency_ms=eager.latency_ms,
            throughput_per_s=latency.inverted(per_second(workload.batch_size, 1.0)),
            energy_j=energy_of(eager.power_w, latency),
            occupancy=None,  # other kernels run, and nobody counted them
            breakdown=_breakdown(kernels, times_us, value),
            warnings=(*eager.warnings, *notes),
        )
        # memory and power come from eager mode, which has widened its own; compiled times were fitted to no option, but
        # where Inductor lays images out itself, all were measured so
        wide = with_options(answer, workload, ("channels_last",) if is_channels_last(workload.graph) else ())
        return replace(
            wide, memory_mib=eager.memory_mib, device_memory_mib=eager.device_memory_mib, power_w=eager.power_w
        )


def compiled(predictor: Predictor, device: str, find_parts: FindParts) -> CompiledPredictor:
    """The predictor with the shipped model of compiled times."""
    model = shipped(device)
    if model is None:
        raise InputError(
            f"torch.compile was not measured on {device}: use --device h200, or leave out --runtime compiled."
        )
    if not isinstance(predictor, UnitTimePredictor):
        raise InputError("Latency under torch.compile needs a predictor that predicts units: leave out --predictor.")
    return CompiledPredictor(predictor, model, find_parts)


def _breakdown(kernels: CompiledKernels, times_us: Values, latency_ms: float) -> tuple[OperatorShare, ...]:
    """Library calls by operator, and generated kernels as one row; longest first."""
    total_us, library = float(times_us.sum()), kernels.is_library
    operators = np.array(kernels.operators)
    rows = []
    for name in dict.fromkeys(kernels.operators):
        own = operators == name
        share = float(times_us[own].sum()) / total_us
        if library[own].all():
            rows.append(OperatorShare(name, int(own.sum()), latency_ms * share, share, "library"))
        else:
            traffic = own & (kernels.columns[:, _TRAFFIC] > 0)
            is_memory_bound = float(times_us[traffic].sum()) > float(times_us[own & ~traffic].sum())
            bound = "memory" if is_memory_bound else "launch"
            rows.append(OperatorShare(FUSED, int(traffic.sum()), latency_ms * share, share, bound))
    return tuple(sorted(rows, key=lambda row: -row.latency_ms))
