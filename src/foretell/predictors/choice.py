"""Predictors: the choice of one: the named one, a fitted file, or the best one for the device."""

from pathlib import Path

from foretell.devices import find_device
from foretell.errors import ModelError
from foretell.predictors.fitted_files import best_fitted
from foretell.predictors.protocol import Predictor
from foretell.registry import Registry

PREDICTORS = Registry(
    "predictor",
    {
        "roofline": "foretell.predictors.roofline:RooflinePredictor",
        "transfer": "foretell.predictors.transfer:TransferPredictor",
        "unit-network": "foretell.predictors.unit.predictor:UnitPredictor",
        "unit-trees": "foretell.predictors.unit.predictor:UnitTreesPredictor",
    },
)


_FILES = Registry(
    "fitted file",
    {
        ".zip": "foretell.predictors.unit.predictor:UnitPredictor",
    },
)


def best_predictor(device: str) -> str:
    """The predictor with the least held-out error on a device.

    Where none is fitted to the device, it is ``transfer`` for GPUs of NVIDIA, and the roofline for all else.

    >>> best_predictor("a100-sxm-40gb"), best_predictor("mi300x")
    ('transfer', 'roofline')
    """
    return best_fitted(device) or ("transfer" if _supports_transfer(device) else "roofline")


def _supports_transfer(name: str) -> bool:
    """Whether a device is a GPU of NVIDIA with a known clock."""
    device = find_device(name)
    return device.is_nvidia and bool(device.boost_clock_mhz)


def find_predictor(name: str | None, device: str) -> Predictor:
    """The predictor of a name, in a file of ``foretell train`` or ``foretell adapt``, or the best for the device."""
    path = Path(name) if name is not None else None
    if path is not None and path.suffix in _FILES:
        predictor: Predictor = _adapted(path) or _FILES.load(path.suffix).from_file(path)
    else:
        predictor = PREDICTORS.load(name or best_predictor(device))()
    return predictor


def _adapted(path: Path) -> Predictor | None:
    """The predictor in a file of ``foretell adapt``; None where it is another file."""
    from foretell.predictors.adapted.model import AdaptedModel, is_adapted  # imports numpy
    from foretell.predictors.adapted.predictor import AdaptedPredictor

    if not is_adapted(path):
        return None
    model = AdaptedModel.from_file(path)
    if model.card.base not in PREDICTORS:
        raise ModelError(f"{path} starts from the predictor {model.card.base!r}, which this foretell does not have.")
    return AdaptedPredictor(model, PREDICTORS.load(model.card.base)(), str(path))
