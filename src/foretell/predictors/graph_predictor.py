"""predictors: the papers' graph networks, served by name: DIPPM tells of inference, TraPPM of training steps.

Their intervals are as wide as nine in ten errors on architectures held aside from the fit, whatever the workload.
"""

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path

from foretell.errors import ModelError
from foretell.features.graph_arrays import extract_graph_arrays
from foretell.predictors.graph_network import GraphNetwork
from foretell.predictors.roofline import RooflinePredictor, uncalibrated
from foretell.predictors.shipped import read_shipped
from foretell.records import Estimate, Prediction, Workload
from foretell.units import per_second

_BETTER = "without --predictor the best one answers"


def file_name(name: str, device: str) -> str:
    """The file of a network that was fitted to a device."""
    return f"{name}-{device}.onnx"


class GraphPredictor:
    """Answers by a graph network, for the device and the modes that it was fitted to."""

    name = "graph-network"

    def __init__(self, network: GraphNetwork | None = None) -> None:
        self._network = network

    @classmethod
    def from_file(cls, path: Path) -> "GraphPredictor":
        """The network that ``foretell train`` wrote."""
        if not path.is_file():
            raise ModelError(f"There is no file {path}; name a predictor, or a file that foretell train wrote.")
        return cls(GraphNetwork.load(path.read_bytes()))

    def predict(self, workload: Workload) -> Prediction:
        """Whatever the network tells of a workload, with intervals; the rest is unknown."""
        network = self._fitted_to(workload)
        base = RooflinePredictor().predict(workload)
        values = network.predict([extract_graph_arrays(workload)])
        widths: dict[str, float] = json.loads(network.notes["widths"])
        told = {name: _around(float(values[name][0]), widths[name]) for name in network.targets}
        latency = told["latency_ms"]
        analytic = uncalibrated(workload.target.device)
        doubt = f"{network.name} was {network.metrics['latency_ms']:.0%} off on architectures held aside; {_BETTER}."
        return replace(
            base,
            predictor=network.name,
            latency_ms=latency,
            memory_mib=told.get("memory_mib"),
            device_memory_mib=told.get("device_memory_mib"),
            energy_j=told.get("energy_j"),
            power_w=told.get("power_w"),
            throughput_per_s=latency.inverted(per_second(workload.batch_size, 1.0)),
            breakdown=(),
            warnings=(*(text for text in base.warnings if text != analytic), doubt),
        )

    def _fitted_to(self, workload: Workload) -> GraphNetwork:
        device = workload.target.device.id
        network = self._network or _shipped(self.name, device)
        if network.notes.get("device") != device:
            raise ModelError(f"{network.name} was fitted to {network.notes.get('device')}, not to {device}; {_BETTER}.")
        modes = network.notes["modes"].split(",")
        if workload.mode not in modes:
            raise ModelError(f"{network.name} tells of {', '.join(modes)}, not of {workload.mode}; {_BETTER}.")
        return network


class DippmPredictor(GraphPredictor):
    """DIPPM (K. Panner Selvam, M. Brorsson, 2023)."""

    name = "dippm"


class TrappmPredictor(GraphPredictor):
    """TraPPM (K. Panner Selvam's thesis, chapter 5)."""

    name = "trappm"


def _around(value: float, width: float) -> Estimate:
    return Estimate(value, value * math.exp(-width), value * math.exp(width))


@cache
def _shipped(name: str, device: str) -> GraphNetwork:
    data = read_shipped(file_name(name, device))
    if data is None:
        raise ModelError(f"No {name} is fitted to {device}; {_BETTER}.")
    return GraphNetwork.load(data)
