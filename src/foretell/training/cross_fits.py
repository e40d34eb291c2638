"""Training: cross-fits of networks on units, for many splits and seeds together; what was fitted before is cached."""

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
from foretell.predictors.unit.rows import UnitRows

WHOLE = "all-0"  # the cached networks of ``foretell train``: one for each fold over all data
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
                _save(fit, files[name])
    # also fresh fits are read back: a first run and a cached one give the same float32 numbers
    return {name: _load(files[name]) for name in folds}


def held_out_unit_us(rows: UnitRows, device: str, cache: Path) -> NDArray[np.float64] | None:
    """The time of every unit by cached networks that have not seen its architecture; None without such networks."""
    # the newest networks first
    files = sorted(cache.glob(f"networks-{device}-*/{WHOLE}.npz"), key=lambda file: -file.stat().st_mtime)
    for file in files:
        log_ratio = _load(file).predictions.log_ratio
        # networks of another state of the data have another number of rows
        if len(log_ratio) == len(rows.counts):
            return np.asarray(np.exp(log_ratio) * rows.bound_us)
    return None


def _save(fit: CrossFit, file: Path) -> None:
    data = io.BytesIO()
    arrays = {name: values.astype(np.float32) for name, values in vars(fit.predictions).items() if values is not None}
    np.savez_compressed(data, allow_pickle=False, network=np.frombuffer(fit.network, np.uint8), **arrays)
    write_whole(file, data.getvalue())


def _load(file: Path) -> CrossFit:
    with np.load(file, allow_pickle=False) as arrays:
        power_w = arrays["power_w"].astype(np.float64) if "power_w" in arrays else None
        log_ratio, spread = (arrays[name].astype(np.float64) for name in ("log_ratio", "spread"))
        return CrossFit(UnitPredictions(log_ratio, power_w, spread), arrays["network"].tobytes())
