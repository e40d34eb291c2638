"""predictors: Workload → Prediction; one file a system."""

import json
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Protocol

from foretell.devices import find_device
from foretell.errors import DeviceError
from foretell.records import Prediction, Workload
from foretell.registry import Registry

TRAINED = resources.files(__name__) / "trained"
ShippedIndex = dict[str, dict[str, dict[str, Any]]]
PREDICTORS = Registry(
    "predictor",
    {
        "carried": "foretell.predictors.carried:CarriedPredictor",
        "dippm": "foretell.predictors.graph_predictor:DippmPredictor",
        "roofline": "foretell.predictors.roofline:RooflinePredictor",
        "trappm": "foretell.predictors.graph_predictor:TrappmPredictor",
        "unit-network": "foretell.predictors.unit_model:UnitPredictor",
        "unit-trees": "foretell.predictors.unit_model:UnitTreesPredictor",
    },
)


_FILES = Registry(
    "fitted file",
    {
        ".onnx": "foretell.predictors.graph_predictor:GraphPredictor",
        ".zip": "foretell.predictors.unit_model:UnitPredictor",
    },
)


class Predictor(Protocol):
    """What every predictor can do."""

    def predict(self, workload: Workload) -> Prediction:
        """Tell how the workload will run."""
        ...


def shipped_index(folder: Traversable = TRAINED) -> ShippedIndex:
    """By device and predictor: the file that the package brings, and how it did on held-out data."""
    index: ShippedIndex = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    return index


@cache
def best_predictor(device: str) -> str:
    """The predictor with the least held-out error on a device; where none is fitted to it, what answers unmeasured.

    That is ``carried`` for GPUs with tensor cores, and the roofline for all else.

    >>> best_predictor("a100-sxm-40gb"), best_predictor("cpu")
    ('carried', 'roofline')
    """
    fitted = shipped_index().get(device, {})
    unmeasured = "carried" if _takes_carried(device) else "roofline"
    return min(fitted, key=lambda name: float(fitted[name]["held_out"]["latency_ms"]), default=unmeasured)


def _takes_carried(name: str) -> bool:
    """Whether a device is a GPU with tensor cores and a known clock."""
    try:
        device = find_device(name)
    except DeviceError:  # one that the caller has described: its clock may be anything
        return False
    on, off = (device.peak_tflops("fp16", tensor_cores=each) for each in (True, False))
    return not device.is_cpu and bool(device.boost_clock_mhz) and on > off


def find_predictor(name: str | None, device: str) -> Predictor:
    """The predictor of a name, of a file that ``foretell train`` wrote, or the best one for the device."""
    path = Path(name) if name is not None else None
    if path is not None and path.suffix in _FILES:
        predictor: Predictor = _FILES.load(path.suffix).from_file(path)
    else:
        predictor = PREDICTORS.load(name or best_predictor(device))()
    return predictor


__all__ = ["PREDICTORS", "TRAINED", "Predictor", "best_predictor", "find_predictor", "shipped_index"]
