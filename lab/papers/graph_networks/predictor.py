"""Lab: the papers' graph networks as predictors: DIPPM for inference, TraPPM for training steps.

An interval is as wide as nine in ten errors on held-out architectures, the same for every workload.
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

_BETTER = "without --predictor foretell uses the best one"


def file_name(name: str, device: str) -> str:
    """The name of the file of a network for a device."""
    return f"{name}-{device}.onnx"


class GraphPredictor:
    """Predicts with a graph network, for the device and the modes that it was fitted to."""

    def __init__(self, network: GraphNetwork) -> None:
        self._network = network

    @classmethod
    def from_file(cls, path: Path) -> "GraphPredictor":
        """The network in a file that ``python -m lab fit`` wrote."""
        if not path.is_file():
            raise ModelError(f"There is no file {path}; give one that python -m lab fit wrote.")
        return cls(GraphNetwork.load(path.read_bytes()))

    def predict(self, workload: Workload) -> Prediction:
        """The metrics that the network predicts, with intervals; the others are None."""
        network = self._fitted_to(workload)
        base = analytic_prediction(workload)
        # a stack of one graph
        values = network.predict([extract_graph_arrays(workload)])
        widths: dict[str, float] = json.loads(network.notes["widths"])
        estimates = {name: _around(float(values[name][0]), widths[name]) for name in network.targets}
        latency = estimates["latency_ms"]
        warning = f"{network.name} was {network.metrics['latency_ms']:.0%} off on held-out architectures; {_BETTER}."
        return replace(
            base,
            predictor=network.name,
            latency_ms=latency,
            memory_mib=estimates.get("memory_mib"),
            device_memory_mib=estimates.get("device_memory_mib"),
            energy_j=estimates.get("energy_j"),
            power_w=estimates.get("power_w"),
            throughput_per_s=latency.inverted(per_second(workload.batch_size, 1.0)),
            breakdown=(),
            warnings=(*base.warnings, warning),
        )

    def _fitted_to(self, workload: Workload) -> GraphNetwork:
        device = workload.target.device.id
        network = self._network
        if network.notes.get("device") != device:
            raise ModelError(f"{network.name} was fitted to {network.notes.get('device')}, not to {device}; {_BETTER}.")
        modes = network.notes["modes"].split(",")
        if workload.mode not in modes:
            raise ModelError(f"{network.name} predicts {', '.join(modes)}, not {workload.mode}; {_BETTER}.")
        return network


def _around(value: float, width: float) -> Estimate:
    return Estimate(value, value * math.exp(-width), value * math.exp(width))
