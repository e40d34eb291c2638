"""Predictors: unit models: the time of every unit of work, then a correction of their sum.

Idea. A unit of work is an operator with what runs as part of it. Its analytic bound is the time that the roofline gives
it at the peaks of the datasheet. A network (or trees) predicts the logarithm of its time over this bound. The bound
already knows sizes and the device, so the ratio stays within a narrow range, and one model serves kernels of 1 µs and
of 100 ms. The times of the units are added up. Small trees on pooled features of the whole workload then correct the
sum, because a sum does not know gaps, overlap and clocks. Memory is the peak that the allocator's replay counts. Power
is the roofline's times a predicted ratio; where a network predicts the power of units, their mean is the power instead.
Energy is power times latency.

Intervals follow split conformal prediction: H. Papadopoulos et al., Inductive Confidence Machines for Regression, ECML
2002; J. Lei et al., Distribution-Free Predictive Inference for Regression, JASA 113, 2018. More trees predict how large
the error of this workload will be (in logarithms). Held-out errors are divided by that expected size, and the quantile
of these scores that covers nine in ten of them sets the width of every interval. So intervals are wide where errors
were large. The errors come from cross-fitting instead of one calibration set, as in V. Vovk's cross-conformal
predictors (2015), which uses all data at the price of a guarantee that is only approximate.

Limits. The guarantee holds for workloads that are exchangeable with the measured ones. Here the scores come from folds
that hold out whole architectures, so a new architecture of a known kind is close to exchangeable. A new family, a kind
of operator that was never measured, or another device is not. For those there is the distance: how far the pooled
features are from the nearest measured workloads, as a multiple of the distance that 99 in 100 held-out workloads stay
within. Above 1 the prediction carries a warning that its interval may be too narrow.

All parts are stored as arrays in one zip file, which `foretell.predictors.unit.fit_model` writes.
"""

import io
import json
import math
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.errors import ModelError
from foretell.features import SCHEMA
from foretell.features.encoded import encode
from foretell.features.pooled import POOLED_SCHEMA, DistinctUnits, Setting, Stacked, pool_many
from foretell.frozen import dataclass
from foretell.predictors.row_memo import RowMemo
from foretell.predictors.trees import Forest, Trees
from foretell.predictors.unit.floors import FLOORS_FROM, least_us
from foretell.predictors.unit.network import UnitNetwork, UnitPredictions
from foretell.predictors.unit.reach import Reach
from foretell.records import Estimate
from foretell.units import ms, seconds_from_ms, seconds_from_us

METRICS = ("latency_ms", "memory_mib", "power_w", "energy_j")
CORRECTED = ("latency_ms", "power_w")
NETWORK, REACH = "network", "reach"
# what the trees for errors know beside the pooled features and the distance: how far the members of the network differ,
# how far units lie beyond what was measured, and which share of the time such units take
DOUBTS = ("spread", "beyond", "new_share")
_STORED = (f"{NETWORK}.npz",)  # weights hardly shrink, and unpacking them delays every start
NEIGHBOURS = 5
_MAX_WIDTH = math.log(20.0)  # an interval never goes beyond a twentieth and twenty times the value
_TINY_US = 1e-9  # below any time, where a unit has no floor
# LightGBM treats a negative category as a missing value, so an operator without a code gets a number of its own
_UNKNOWN_OPERATOR = 500.0

Row = NDArray[np.float32]
Values = NDArray[np.float64]


@dataclass(frozen=True)
class WorkloadPrediction:
    """The prediction for one workload; a ``distance`` above 1 is far from all that the model was fitted to.

    ``beyond`` says of each distinct unit how many octaves it lies beyond what was measured.
    """

    unit_us: NDArray[np.float64]
    estimates: Mapping[str, Estimate]
    distance: float
    beyond: NDArray[np.float64]


@dataclass(frozen=True)
class _Remembered:
    """What is known of units: log(time / bound) and its spread, the power, how far each is beyond what was measured."""

    log_ratio: NDArray[np.float64]
    spread: NDArray[np.float64]
    power_w: NDArray[np.float64]
    beyond: NDArray[np.float64]


class UnitModel:
    """The model fitted to one device: a ``network`` or trees on units, and trees on the whole workload."""

    def __init__(
        self,
        models: Mapping[str, Trees],
        card: Mapping[str, Any],
        known: Row,
        reach: Reach,
        network: UnitNetwork | None = None,
    ) -> None:
        self.models = models
        self.network = network
        self.reach = reach
        self.card = card
        self.known = known
        scale = card["distance"]
        self._middle, self._spread = np.array(scale["middle"]), np.array(scale["spread"])
        self._squares = (known**2).sum(1)
        self._memo = RowMemo(len(fields(_Remembered)))

    @classmethod
    def load(cls, data: bytes) -> "UnitModel":
        """Read what `write` wrote; refuse a file that was fitted to other features than today's."""
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                card = json.loads(archive.read("card.json"))
                schemas = card["schema"], card["pooled_schema"]
                known = np.load(io.BytesIO(archive.read("known.npy")), allow_pickle=False).astype(np.float32)
                names = [name for name in archive.namelist() if name.endswith(".npz")]
                files = {name.removesuffix(".npz"): archive.read(name) for name in names}
        except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise ModelError(f"These {len(data)} bytes are not a fitted predictor: {error}.") from error
        # features of the same shape but another meaning would give wrong numbers without an error
        if schemas != (SCHEMA, POOLED_SCHEMA):
            raise ModelError("This predictor was fitted to other features than today's; fit it again: foretell train.")
        network = UnitNetwork.load(files.pop(NETWORK)) if NETWORK in files else None
        reach = Reach.load(files.pop(REACH, b""))
        return cls({name: Trees.load(file) for name, file in files.items()}, card, known, reach, network)

    def times_us(self, units: DistinctUnits) -> NDArray[np.float64]:
        """The time of each distinct unit."""
        return np.asarray(np.exp(self._remembered(units.features, units.bound_us).log_ratio) * units.bound_us)

    def _remembered(self, features: Row, bound_us: NDArray[np.float64]) -> "_Remembered":
        """What is known of each unit; equal units are predicted once, whatever the workload."""

        def compute(new: Row, new_bound_us: NDArray[np.float64]) -> NDArray[np.float64]:
            predictions = self._predict_units(new, new_bound_us)
            power_w = np.full(len(new), np.nan) if predictions.power_w is None else predictions.power_w
            log_ratio = predictions.log_ratio
            if self.card.get("device") == FLOORS_FROM:
                log_ratio = np.maximum(log_ratio, np.log(np.maximum(least_us(new), _TINY_US) / new_bound_us))
            return np.stack([log_ratio, predictions.spread, power_w, self.reach.beyond(new)], axis=1)

        return _Remembered(*self._memo.values(features, bound_us, compute).T)

    def _predict_units(self, features: Row, bound_us: NDArray[np.float64]) -> UnitPredictions:
        """The time of each unit over its bound, and its power where a network predicts it."""
        if self.network is not None:
            return self.network.predict(encode(features), bound_us)
        return UnitPredictions.mean_of([self.models["unit"].predict(tree_rows(features))], [])

    def predict(self, units: DistinctUnits, setting: Setting, roofline_w: float) -> WorkloadPrediction:
        """Predict all metrics of one workload that were measured on the device, with intervals."""
        return self.predict_many([(units, setting, roofline_w)])[0]

    def predict_many(self, asked: Sequence[tuple[DistinctUnits, Setting, float]]) -> list[WorkloadPrediction]:
        """The predictions of several workloads: the network and the trees are asked once for all of them."""
        units, settings = Stacked.of([units for units, _, _ in asked]), [setting for _, setting, _ in asked]
        found = self._remembered(units.features, units.bound_us)
        unit_us = np.exp(found.log_ratio) * units.bound_us
        pooled = pool_many(units, unit_us, settings)
        distances = self.distances(pooled)
        # distance and doubts are the last features: trees learn that errors grow with them
        doubts = doubts_of(lambda values: units.means(unit_us, values), found.spread, found.beyond)
        rows = np.concatenate([pooled, distances[:, None], doubts], axis=1).astype(np.float32)
        power_w = units.means(unit_us, found.power_w)
        base = {
            # equal units are predicted once and counted
            "latency_ms": units.sums(unit_us * units.counts) * ms(seconds_from_us(1.0)),
            "memory_mib": np.array([setting.memory_mib for setting in settings]),
            "power_w": np.where(np.isnan(power_w), [roofline_w for _, _, roofline_w in asked], power_w),
        }
        fitted = self._forest.predict(rows) if self._forest is not None else {}
        # where a network predicts a metric itself, nothing corrects it
        values = {name: base[name] * np.exp(fitted[name]) if name in fitted else base[name] for name in base}
        # energy has no trees of its own, so that it never contradicts power and latency; it has its own interval
        values["energy_j"] = values["power_w"] * values["latency_ms"] * seconds_from_ms(1.0)
        intervals = {
            name: self._intervals(name, values[name], fitted[f"{name}_error"])
            for name in values
            if f"{name}_error" in fitted
        }
        return [
            WorkloadPrediction(
                own_us, {name: estimates[number] for name, estimates in intervals.items()}, distance, beyond
            )
            for number, (own_us, distance, beyond) in enumerate(
                zip(units.split(unit_us), distances.tolist(), units.split(found.beyond), strict=True)
            )
        ]

    def distances(self, rows: Row) -> NDArray[np.float64]:
        """How far each row is from the nearest measured workloads; 1 is the 99th percentile of held-out workloads."""
        return nearest(self._scaled(rows), self.known, self._squares) / float(self.card["distance"]["far"])

    def _scaled(self, rows: Row) -> Row:
        return np.asarray((rows - self._middle) / self._spread, dtype=np.float32)

    @cached_property
    def _forest(self) -> Forest | None:
        """The trees on whole workloads, together; None where the model has none."""
        trees = {name: trees for name, trees in self.models.items() if name != "unit"}
        return Forest(trees) if trees else None

    def _intervals(self, name: str, values: NDArray[np.float64], log_errors: NDArray[np.float64]) -> list[Estimate]:
        """Each value times and divided by its expected error, which the conformal quantile scales."""
        expected = np.exp(log_errors)
        widths = np.exp(np.minimum(expected * float(self.card["quantiles"][name]), _MAX_WIDTH))
        ends = zip(values.tolist(), (values / widths).tolist(), (values * widths).tolist(), strict=True)
        return [Estimate(value, low, high) for value, low, high in ends]


def doubts_of(mean: Callable[[Values], Values], spread: Values, beyond: Values) -> Values:
    """The `DOUBTS` of each workload; ``mean`` is that over its units, weighted by their time."""
    return np.stack([mean(spread), mean(beyond), mean((beyond > 0).astype(np.float64))], axis=1)


def tree_rows(features: Row) -> Row:
    """Rows of units in the form that the trees take."""
    rows = features.copy()
    # column 0 is the code of the operator, −1 where it is unknown
    rows[rows[:, 0] < 0, 0] = _UNKNOWN_OPERATOR
    return rows


def nearest(rows: Row, known: Row, known_squares: Row | None = None) -> NDArray[np.float64]:
    """The mean distance from each row to the `NEIGHBOURS` nearest known rows; ``known_squares`` are their norms."""
    few = min(NEIGHBOURS, len(known))
    of_known = (known**2).sum(1) if known_squares is None else known_squares
    # |a − b|² = |a|² + |b|² − 2 ab: one matrix product instead of a difference for each pair
    squares = (rows**2).sum(1)[:, None] + of_known[None] - 2 * rows @ known.T
    return np.asarray(np.sqrt(np.maximum(np.partition(squares, few - 1, axis=1)[:, :few], 0)).mean(1), np.float64)


def write(models: Mapping[str, bytes], card: Mapping[str, Any], known: Row) -> bytes:
    """Fitted trees as one file; the same trees give the same bytes."""
    numbers, file = io.BytesIO(), io.BytesIO()
    np.save(numbers, known.astype(np.float16))
    parts = {"card.json": json.dumps(card, indent=1, sort_keys=True).encode(), "known.npy": numbers.getvalue()}
    parts |= {f"{name}.npz": data for name, data in models.items()}
    with zipfile.ZipFile(file, "w") as archive:
        for name in sorted(parts):
            # a `ZipInfo` without a date, so that the bytes do not depend on the time of writing
            method = zipfile.ZIP_STORED if name in _STORED else zipfile.ZIP_DEFLATED
            archive.writestr(zipfile.ZipInfo(name), parts[name], method, 9)
    return file.getvalue()
