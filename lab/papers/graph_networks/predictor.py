"""predictors: the papers' graph networks, as predictors: DIPPM of inference, TraPPM of training steps.

Their intervals are as wide as nine in ten errors on architectures held aside from the fit, whatever the workload.
"""

import json
import math
from dataclasses import replace
from pathlib import Path

from foretell.errors import ModelError
from foretell.predictors.roofline import analytic_prediction
from foretell.records import Estimate, Prediction, Workload
from foretell.units import per_second
from lab.papers.graph_networks.arrays import extract_graph_arrays
from lab.papers.graph_networks.network import GraphNetwork

_BETTER = "without --predictor the best one answers"


def file_name(name: str, device: str) -> str:
    """The file of a network that was fitted to a device."""
    return f"{name}-{device}.onnx"


class GraphPredictor:
    """Answers by a graph network, for the device and the modes that it was fitted to."""

    def __init__(self, network: GraphNetwork) -> None:
        self._network = network

    @classmethod
    def from_file(cls, path: Path) -> "GraphPredictor":
        """The network that ``python -m lab fit`` wrote."""
        if not path.is_file():
            raise ModelError(f"There is no file {path}; give one that python -m lab fit wrote.")
        return cls(GraphNetwork.load(path.read_bytes()))

    def predict(self, workload: Workload) -> Prediction:
        """Whatever the network tells of a workload, with intervals; the rest is unknown."""
        network = self._fitted_to(workload)
        base = analytic_prediction(workload)
        values = network.predict([extract_graph_arrays(workload)])
        widths: dict[str, float] = json.loads(network.notes["widths"])
        told = {name: _around(float(values[name][0]), widths[name]) for name in network.targets}
        latency = told["latency_ms"]
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
            warnings=(*base.warnings, doubt),
        )

    def _fitted_to(self, workload: Workload) -> GraphNetwork:
        device = workload.target.device.id
        network = self._network
        if network.notes.get("device") != device:
            raise ModelError(f"{network.name} was fitted to {network.notes.get('device')}, not to {device}; {_BETTER}.")
        modes = network.notes["modes"].split(",")
        if workload.mode not in modes:
            raise ModelError(f"{network.name} tells of {', '.join(modes)}, not of {workload.mode}; {_BETTER}.")
        return network


def _around(value: float, width: float) -> Estimate:
    return Estimate(value, value * math.exp(-width), value * math.exp(width))
