"""Workflows: drift: do new measurements still agree with the predictor of a device?

Two tests on the logarithms of measured over predicted, in the order in which they were taken. Their middle: has it all
become slower or faster, by more than chance allows? And runs: if nothing changed, measurements lie above and below the
prediction in a random order; few and long runs say that something changes while time passes (A. Wald and J. Wolfowitz,
Annals of Mathematical Statistics 11, 1940). Each test is wrong once in a hundred times.

Limits: the predictor's own errors scatter, too. A change that is smaller than they are needs many measurements.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from foretell.devices import Device
from foretell.devices.device_file import device_of
from foretell.errors import InputError
from foretell.predictors import find_predictor
from foretell.predictors.adapted.model import AdaptedModel, is_adapted
from foretell.predictors.adapted.predictor import is_same_probe, probe_of
from foretell.predictors.adapted.units import Values
from foretell.readable import Readable
from foretell.records import Measurement
from foretell.workflows.adapting.adapt import adapted_prediction, described
from foretell.workflows.adapting.measured import read_measured
from foretell.workflows.workload import own_predictor_path

_FEWEST_FOR_RUNS = 10
_SIGNIFICANT = 2.576  # standard deviations: once in a hundred times by chance
_NINE_IN_TEN = 1.645
_MOSTLY = 0.5  # of the measurements: if no more lie in their intervals, a few of them do not show that all is well
_SMALL = 0.05  # a shift below it is not worth measuring again


@dataclass(frozen=True, repr=False)
class Drift(Readable):
    """New measurements against a predictor: ``shift`` is measured over predicted, in the middle.

    ``runs_score`` is how many standard deviations fewer runs there are than by chance; None with few measurements.
    """

    device: str
    predictor: str
    samples: int
    shift: float
    interval_share: float
    runs_score: float | None
    measure_again: bool
    reason: str
    rows_: tuple[dict[str, Any], ...]

    def heading(self) -> str:
        """The verdict."""
        shown = "no drift" if self.interval_share > _MOSTLY else "no drift shown"
        return f"{self.device}: {'measure again' if self.measure_again else shown}"

    def lines(self) -> Iterator[tuple[str, str]]:
        """The figures and the reason."""
        yield "measurements", str(self.samples)
        yield "measured / predicted", f"{self.shift:.3f}"
        yield "in the interval", f"{self.interval_share:.0%}"
        yield "reason", self.reason

    def rows(self) -> Sequence[dict[str, Any]]:
        """One row for each measurement."""
        return self.rows_

    def to_dict(self) -> dict[str, Any]:
        """The object that ``foretell adapt --check --json`` prints."""
        names = ("device", "predictor", "samples", "shift", "interval_share", "measure_again", "reason")
        result: dict[str, Any] = {name: getattr(self, name) for name in names}
        if self.runs_score is not None:
            result["runs_score"] = self.runs_score
        return result | {"rows": list(self.rows_)}


def check(
    device: str | Path | Device,
    source: str | Path | Sequence[Measurement],
    *,
    predictor: str | Path | None = None,
    trust: bool = False,
    log: Callable[[str], None] = lambda _: None,
) -> Drift:
    """Compare new measurements of a device with its adapted predictor, and say whether to measure again."""
    target = device_of(device)
    path = Path(predictor) if predictor is not None else own_predictor_path(target.id)
    if not is_adapted(path):
        raise InputError(
            f"There is no adapted predictor of {target.id} in {path}: run foretell adapt --device {device} --from …"
        )
    model = AdaptedModel.from_file(path)
    start = find_predictor(model.card.base, target.id)
    if model.card.device != target.id:
        raise InputError(f"{path} was adapted to {model.card.device}, not to {target.id}.")
    if not is_same_probe(model.card.probe, probe_of(target, start, model.card.base)):
        raise InputError(f"{path} corrects another version of foretell or of {target.id}: run foretell adapt again.")
    measured, _ = read_measured(source, target, trust=trust, log=log)
    samples = described(measured, start)
    found = [adapted_prediction(sample, model) for sample in samples]
    off, widths = np.array([one[0] for one in found]), np.array([one[1] for one in found])
    # what one measurement differs by: as it was when the predictor was made, and as its intervals say
    scatter = max(model.card.drift, float(widths.mean()) / _NINE_IN_TEN)
    shift, error = float(np.median(off)), scatter / math.sqrt(len(off))
    # a median scatters a quarter more than a mean
    is_shifted = abs(shift) > max(_SIGNIFICANT * 1.25 * error, _SMALL)
    score = runs_score(off)
    inside = float((np.abs(off) <= widths).mean())
    reasons = []
    if is_shifted:
        slower = f"{abs(math.expm1(shift)):.0%} {'slower' if shift > 0 else 'faster'}"
        reasons.append(f"the device is {slower} than when it was measured")
    if score is not None and score > _SIGNIFICANT:
        reasons.append("measurements lie on one side of the prediction for long, so something changes with time")
    # by chance an interval misses once in ten times
    if (1 - inside) * len(off) > 0.1 * len(off) + _SIGNIFICANT * math.sqrt(0.09 * len(off)) + 0.5:
        reasons.append(f"only {inside:.0%} of the measurements lie in their intervals, which should hold 90%")
    rows = tuple(
        {"model": one.row.model, "batch_size": one.row.batch_size, "latency_ms": one.row.latency_ms,
         "predicted_ms": one.row.latency_ms / math.exp(ratio), "ratio": math.exp(ratio),
         "in_interval": abs(ratio) <= width}
        for one, (ratio, width) in zip(measured, found, strict=True)
    )  # fmt: skip
    return Drift(
        target.id, str(path), len(off), math.exp(shift), inside, score, bool(reasons),
        "; ".join(reasons) or _without_drift(inside, len(off)), rows,
    )  # fmt: skip


def _without_drift(inside: float, number: int) -> str:
    if inside > _MOSTLY:
        return "what differs is within what was expected"
    many = "1 measurement lies" if number == 1 else f"{round((1 - inside) * number)} of {number} measurements lie"
    return f"{many} outside of the interval, which is too little to tell: measure a few more models and check again"


def runs_score(values: Values) -> float | None:
    """How many standard deviations fewer runs above and below 0 there are than by chance; None with few values.

    >>> round(runs_score(np.array([1.0] * 8 + [-1.0] * 8)), 1)
    3.6
    """
    above = int((values > 0).sum())
    below = len(values) - above
    if len(values) < _FEWEST_FOR_RUNS or not above or not below:
        return None
    runs = 1 + int((np.diff((values > 0).astype(int)) != 0).sum())
    product = 2 * above * below
    expected = product / len(values) + 1
    variance = product * (product - len(values)) / (len(values) ** 2 * (len(values) - 1))
    return (expected - runs) / math.sqrt(variance) if variance > 0 else None
