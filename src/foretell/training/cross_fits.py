"""workflows: networks on units, for many splits and seeds at once; what was fitted is kept and not fitted again."""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foretell.files import write_whole
from foretell.predictors.sample import Sample
from foretell.predictors.unit.fit_model import CrossFit, Settings, cross_fit_networks
from foretell.predictors.unit.fit_network import Classes, default_device
from foretell.predictors.unit.network import UnitPredictions

_AT_ONCE = {"cuda": 8, "cpu": 1}  # fits that share a device's memory

Say = Callable[[str], None]


def cross_fits(
    samples: Sequence[Sample],
    folds: Mapping[str, NDArray[np.intp]],
    settings: Settings,
    files: Mapping[str, Path],
    say: Say = lambda _: None,
    read_classes: Callable[[], Classes | None] = lambda: None,
) -> dict[str, CrossFit]:
    """The fits of ``folds`` by their names, from ``files`` where they are; others are fitted, several at a time.

    ``read_classes`` is asked for the classes of kernels where anything is fitted.
    """
    missing = [name for name in folds if not files[name].exists()]
    if missing:
        device, classes = default_device(), read_classes()
        step = _AT_ONCE.get(device, 1)
        for start in range(0, len(missing), step):
            names = missing[start : start + step]
            say(f"networks on units for {', '.join(names)}, on {device}")
            fitted = cross_fit_networks(samples, [folds[name] for name in names], settings, device, say, classes)
            for name, fit in zip(names, fitted, strict=True):
                _save(fit, files[name])
    return {name: _load(files[name]) for name in folds}


def _save(fit: CrossFit, file: Path) -> None:
    data = io.BytesIO()
    told = {name: values.astype(np.float32) for name, values in vars(fit.predictions).items() if values is not None}
    np.savez_compressed(data, allow_pickle=False, network=np.frombuffer(fit.network, np.uint8), **told)
    write_whole(file, data.getvalue())


def _load(file: Path) -> CrossFit:
    with np.load(file, allow_pickle=False) as arrays:
        power_w = arrays["power_w"].astype(np.float64) if "power_w" in arrays else None
        return CrossFit(UnitPredictions(arrays["log_ratio"].astype(np.float64), power_w), arrays["network"].tobytes())
