"""Training: cross-fits of networks on units, for many splits and seeds together; what was fitted before is cached."""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foretell.files import write_whole
from foretell.predictors.sample import Sample
from foretell.predictors.unit.fit_model import CrossFit, Settings, cross_fit_networks, folds_of
from foretell.predictors.unit.fit_network import Classes, default_device
from foretell.predictors.unit.network import UnitPredictions
from foretell.training.judging.protocol import groups_of

ALL_DATA = "all-0"  # the cached networks of ``foretell train``: one for each fold over all data
_FITS_AT_ONCE = {"cuda": 8, "cpu": 1}  # cross-fits that fit into the memory of a device together

Log = Callable[[str], None]


def cross_fits(
    samples: Sequence[Sample],
    folds: Mapping[str, NDArray[np.intp]],
    settings: Settings,
    files: Mapping[str, Path],
    log: Log = lambda _: None,
    read_classes: Callable[[], Classes | None] = lambda: None,
) -> dict[str, CrossFit]:
    """The cross-fits of ``folds`` by name, read from ``files`` where these exist; the others are fitted and saved.

    ``read_classes`` is called for the classes of kernels only if something must be fitted.
    """
    missing = [name for name in folds if not files[name].exists()]
    if missing:
        device, classes = default_device(), read_classes()
        step = _FITS_AT_ONCE.get(device, 1)
        for start in range(0, len(missing), step):
            names = missing[start : start + step]
            log(f"networks on units for {', '.join(names)}, on {device}")
            fitted = cross_fit_networks(samples, [folds[name] for name in names], settings, device, log, classes)
            for name, fit in zip(names, fitted, strict=True):
                save_cross_fit(fit, files[name])
    # also fresh fits are read back: a first run and a cached one give the same float32 numbers
    return {name: _load(files[name]) for name in folds}


def held_out_units(samples: Sequence[Sample], device: str, cache: Path) -> UnitPredictions | None:
    """What networks that ``foretell train`` cached predict for units of architectures that they have not seen.

    None where there are none, or where they belong to another state of the data.
    """
    folds, rows = folds_of(groups_of(samples), Settings()), sum(len(sample.units) for sample in samples)
    # the newest networks first
    for file in sorted(cache.glob(f"networks-{device}-*/{ALL_DATA}.npz"), key=lambda file: -file.stat().st_mtime):
        (fit,) = cross_fits(samples, {ALL_DATA: folds}, Settings(), {ALL_DATA: file}).values()
        # networks of another state of the data have another number of rows
        if len(fit.predictions.log_ratio) == rows:
            return fit.predictions
    return None


def save_cross_fit(fit: CrossFit, file: Path) -> None:
    """Write a cross-fit where `cross_fits` finds it."""
    data = io.BytesIO()
    arrays = {name: values.astype(np.float32) for name, values in vars(fit.predictions).items() if values is not None}
    np.savez_compressed(data, allow_pickle=False, network=np.frombuffer(fit.network, np.uint8), **arrays)
    write_whole(file, data.getvalue())


def _load(file: Path) -> CrossFit:
    with np.load(file, allow_pickle=False) as arrays:
        power_w = arrays["power_w"].astype(np.float64) if "power_w" in arrays else None
        log_ratio, spread = (arrays[name].astype(np.float64) for name in ("log_ratio", "spread"))
        return CrossFit(UnitPredictions(log_ratio, power_w, spread), arrays["network"].tobytes())
