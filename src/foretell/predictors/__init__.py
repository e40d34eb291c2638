"""predictors: Workload → Prediction; one file a system."""

import importlib
import json
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Protocol

from foretell.records import Prediction, Workload
from foretell.registry import Registry

PREDICTORS = Registry(
    "predictor",
    {
        "roofline": "foretell.predictors.roofline:RooflinePredictor",
        "unit-network": "foretell.predictors.unit_model:UnitPredictor",
        "unit-trees": "foretell.predictors.unit_model:UnitTreesPredictor",
    },
)


class Predictor(Protocol):
    """What every predictor can do."""

    def predict(self, workload: Workload) -> Prediction:
        """Tell how the workload will run."""
        ...


@cache
def best_predictor(device: str) -> str:
    """The predictor with the least held-out error on a device; where none is fitted to it, the roofline.

    >>> best_predictor("a100-sxm-40gb")
    'roofline'
    """
    index = json.loads((resources.files(__name__) / "trained" / "index.json").read_text(encoding="utf-8"))
    fitted = index.get(device, {})
    return min(fitted, key=lambda name: float(fitted[name]["held_out"]["latency_ms"]), default="roofline")


def find_predictor(name: str | None, device: str) -> Predictor:
    """The predictor of a name, of a file that ``foretell train`` wrote, or the best one for the device."""
    if name is not None and name.endswith(".zip"):
        module = importlib.import_module("foretell.predictors.unit_model")
        predictor: Predictor = module.UnitPredictor.from_file(Path(name))
    else:
        predictor = PREDICTORS.load(name or best_predictor(device))()
    return predictor


__all__ = ["PREDICTORS", "Predictor", "best_predictor", "find_predictor"]
