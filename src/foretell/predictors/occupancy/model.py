"""Predictors: the occupancy of a workload, from the occupancy and the time of its units.

Idea. A network predicts for each unit of work how full the SMs are while its kernels run (`occupancy_pct`), and how
much longer than its predicted time a hardware counter would see it run. The mean over the units, weighted by this time,
is the occupancy of the workload: what Nsight Compute shows as achieved occupancy, weighted by duration.

Why another time: a counter runs kernels one by one and adds about a microsecond to each. Kernels that a library runs
side by side (the groups of a convolution) count one after the other.

Intervals are conformal: their width comes from errors on architectures that were left out, as logarithms. In a mode
that nobody counted they are twice as wide.

Limits: fitted to whole devices and to PyTorch in eager mode. On a slice, under ``torch.compile`` and on devices whose
kernels nobody counted there is no occupancy: other kernels run there, or other numbers of blocks lie on an SM.
"""

import io
import json
import math
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.errors import ModelError
from foretell.features import SCHEMA
from foretell.features.encoded import encode
from foretell.features.pooled import DistinctUnits, Stacked
from foretell.frozen import dataclass
from foretell.predictors.fitted_files import read_shipped
from foretell.predictors.row_memo import RowMemo
from foretell.predictors.unit.network import UnitNetwork, scaled
from foretell.records import Estimate, Workload

MOST_PCT = 101.0  # the upper end of the logit: a counter can show 100
_MAX_LOGIT = 30.0
_MAX_LOG_TIME = 5.0
_UNCOUNTED = 2.0  # times the width: an assumption

Values = NDArray[np.float64]


@dataclass(frozen=True)
class OccupancyModel:
    """The network that was fitted to one device; ``card`` says to what, and has the width of the intervals."""

    network: UnitNetwork
    card: Mapping[str, Any]

    @classmethod
    def load(cls, data: bytes) -> "OccupancyModel":
        """Read what `write` wrote; refuse a file that was fitted to other features than today's."""
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                card, network = json.loads(archive.read("card.json")), archive.read("network.npz")
            schema, width, _ = card["schema"], float(card["width"]), list(card["modes"])
        except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise ModelError(f"These {len(data)} bytes are not a fitted model of occupancy: {error}.") from error
        if schema != SCHEMA or not 0.0 < width < math.inf:
            raise ModelError(
                "This model of occupancy was fitted to other features than today's; fit it again: "
                "foretell train -p occupancy."
            )
        return cls(UnitNetwork.load(network), card)

    def units(self, features: NDArray[np.float32]) -> tuple[Values, Values]:
        """For each unit its occupancy in per cent, and its time under a counter over its predicted time."""
        found = self._memo.values(
            features, np.zeros(len(features)), lambda new, _: np.stack(predict_units(self.network, new), axis=1)
        )
        return found[:, 0], found[:, 1]

    @cached_property
    def _memo(self) -> RowMemo:
        return RowMemo(2)

    def predict(self, units: DistinctUnits, unit_us: Values, mode: str = "inference") -> Estimate:
        """The occupancy of a workload with these units and times, in per cent."""
        return self.predict_many(Stacked.of([units]), unit_us, [mode])[0]

    def predict_many(self, units: Stacked, unit_us: Values, modes: Sequence[str]) -> list[Estimate]:
        """The occupancy of several workloads."""
        occupancy_pct, ratio = self.units(units.features)
        weights = unit_us * ratio * units.counts
        values = (units.sums(occupancy_pct * weights) / units.sums(weights)).tolist()
        # in a mode that was traced but not counted nothing could be compared
        width = float(self.card["width"])
        widths = [math.exp(width * (1.0 if mode in self.card["modes"] else _UNCOUNTED)) for mode in modes]
        pairs = zip(values, widths, strict=True)
        return [Estimate(value, value / width, min(value * width, 100.0)) for value, width in pairs]


def predict_units(network: UnitNetwork, features: NDArray[np.float32]) -> tuple[Values, Values]:
    """What a network says of each unit: its occupancy, and its time under a counter over its predicted time."""
    encoded = encode(features)
    numbers = scaled(network.bins.with_positions(encoded.numbers), network.middle, network.spread)
    codes = np.minimum(encoded.operators, network.operators - 1)
    members = [network.forward(member, numbers, codes) for member in range(network.members)]
    outputs = np.asarray(np.mean(members, axis=0, dtype=np.float64))
    occupancy_pct = MOST_PCT / (1.0 + np.exp(-np.clip(outputs[:, 0], -_MAX_LOGIT, _MAX_LOGIT)))
    return np.minimum(occupancy_pct, 100.0), np.exp(np.clip(outputs[:, 1], -_MAX_LOG_TIME, _MAX_LOG_TIME))


def weighted_mean(values: Values, weights: Values) -> float:
    """The mean of values, each with its weight.

    >>> weighted_mean(np.array([10.0, 40.0]), np.array([2.0, 1.0]))
    20.0
    """
    return float((values * weights).sum() / weights.sum())


def write(network: UnitNetwork, card: Mapping[str, Any]) -> bytes:
    """A fitted model as one file; the same network gives the same bytes."""
    file = io.BytesIO()
    parts = {
        "card.json": json.dumps({**card, "schema": SCHEMA}, indent=1, sort_keys=True).encode(),
        "network.npz": network.to_bytes(),
    }
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in parts.items():
            # a `ZipInfo` without a date, so that the bytes do not depend on the time of writing
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED, 9)
    return file.getvalue()


def file_name(device: str) -> str:
    """The name of the file for a device."""
    return f"occupancy-{device}.zip"


@cache
def shipped(device: str) -> OccupancyModel | None:
    """The model that the package ships for a device, or None."""
    data = read_shipped(file_name(device))
    return None if data is None else OccupancyModel.load(data)


def occupancy_of(workload: Workload, units: DistinctUnits, unit_us: Values) -> Estimate | None:
    """The occupancy of a workload whose units take these times; None where kernels were not counted like this."""
    return occupancies_of([(workload, units, unit_us)])[0]


def occupancies_of(asked: Sequence[tuple[Workload, DistinctUnits, Values]]) -> list[Estimate | None]:
    """The occupancy of each workload; a model is asked once for all on the same device."""
    found: list[Estimate | None] = [None] * len(asked)
    groups: dict[str, list[int]] = {}
    for number, (workload, _, _) in enumerate(asked):
        if workload.target.slice is None:
            groups.setdefault(workload.target.device.id, []).append(number)
    for device, numbers in groups.items():
        model = shipped(device)
        if model is not None:
            workloads, units, times_us = zip(*[asked[number] for number in numbers], strict=True)
            modes = [workload.mode for workload in workloads]
            estimates = model.predict_many(Stacked.of(units), np.concatenate(times_us), modes)
            for number, estimate in zip(numbers, estimates, strict=True):
                found[number] = estimate
    return found
