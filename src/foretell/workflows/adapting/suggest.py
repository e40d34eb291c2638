"""Workflows: which models to measure, so that a device's predictor learns most from few measurements.

The package has a list of candidates: models of timm and torchvision, described as adaptation sees them on an H200. What
a measurement of one of them would teach follows from the prior alone, before anything is measured: it lowers the
variance of all candidates that are like it (A-optimal design; K. Chaloner and I. Verdinelli, Statistical Science
10, 1995). The best one is taken, then the best one after that, and so on. Where the device has a predictor already, its
measurements count as taken.
"""

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from foretell.devices import Device
from foretell.devices.device_file import device_of
from foretell.errors import DataError, ModelError
from foretell.files import write_whole
from foretell.predictors.adapted.model import AdaptedModel, is_adapted
from foretell.predictors.adapted.regression import LATENCY_PARTS, Widths
from foretell.predictors.adapted.units import WIDTH, Values
from foretell.predictors.fitted_files import read_shipped
from foretell.readable import Readable
from foretell.units import bytes_from_gib, mib
from foretell.workflows.workload import own_predictor_path

CANDIDATES = "candidates.npz"
_DEVIATION = 0.286  # what transfer states; only the proportions of the prior matter here
_FULL = 0.5  # of the device's memory: larger workloads may not fit
_CPU_DTYPES = ("fp32",)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A workload that could be measured, and how much of the variance is left after it."""

    model: str
    batch_size: int
    dtype: str
    left: float


@dataclass(frozen=True, repr=False)
class Suggestion(Readable):
    """The models whose measurement would help most, the best one first, and the plan that measures them."""

    device: str
    candidates: tuple[Candidate, ...]
    plan: str

    def heading(self) -> str:
        """How many, and for which device."""
        return f"{len(self.candidates)} models to measure on {self.device}"

    def lines(self) -> Iterator[tuple[str, str]]:
        """The models with what is left of the doubt after each, and the next steps."""
        for one in self.candidates:
            yield one.model, f"batch {one.batch_size}, {one.dtype}: {one.left:.0%} of the doubt is left"
        yield "plan", self.plan
        kind = " --device cpu" if self.device == "cpu" else ""
        yield "next", f"foretell collect {self.plan}{kind} --store measured"
        yield "then", f"foretell adapt --device {self.device} --from measured"

    def rows(self) -> list[dict[str, Any]]:
        """One row for each model."""
        return [
            {"model": one.model, "batch_size": one.batch_size, "dtype": one.dtype, "left": one.left}
            for one in self.candidates
        ]

    def to_dict(self) -> dict[str, Any]:
        """The object that ``foretell adapt --suggest N --json`` prints."""
        return {"device": self.device, "plan": self.plan, "candidates": self.rows()}


def suggest(device: str | Path | Device, number: int = 16, *, out: str | Path = "adapt-plan.toml") -> Suggestion:
    """Choose what to measure, and write a plan for ``foretell collect``."""
    target = device_of(device)
    names, rows, memory_mib = read_candidates()
    room_mib = mib(bytes_from_gib(target.memory_gib)) * _FULL
    is_possible = np.array(
        [
            needed < room_mib and (not target.is_cpu or dtype in _CPU_DTYPES)
            for (_, _, dtype), needed in zip(names, memory_mib.tolist(), strict=True)
        ]
    )
    places = np.flatnonzero(is_possible)
    if not len(places):
        raise DataError(f"No candidate fits into the {target.memory_gib:g} GiB of {target.id}.")
    taken = most_telling(rows[places], number, *_known(target))
    picked = [(names[places[place]], left) for place, left in taken]
    chosen = tuple(Candidate(model, batch, dtype, left) for (model, batch, dtype), left in picked)
    path = Path(out)
    try:
        write_whole(path, plan_text(target.id, chosen, is_cpu=target.is_cpu).encode())
    except OSError as error:
        raise DataError(f"Cannot write the plan {path}: {error.strerror}.") from error
    return Suggestion(target.id, chosen, str(path))


def read_candidates() -> tuple[list[tuple[str, int, str]], Values, Values]:
    """The candidates: model, batch size and dtype; their rows; the memory that each takes."""
    data = read_shipped(CANDIDATES)
    if data is None:
        raise ModelError(f"The package lacks {CANDIDATES}: install foretell again.")
    with np.load(io.BytesIO(data), allow_pickle=False) as stored:
        names = [(str(model), int(batch), str(dtype)) for model, batch, dtype in json.loads(str(stored["names"]))]
        rows, memory_mib = stored["rows"].astype(np.float64), stored["memory_mib"].astype(np.float64)
    if rows.shape != (len(names), WIDTH):
        raise ModelError(f"{CANDIDATES} is of another version of foretell: install foretell again.")
    return names, rows, memory_mib


def _known(device: Device) -> tuple[Widths, Values | None]:
    """The prior, and what was explained already."""
    path = own_predictor_path(device.id)
    if is_adapted(path):
        factors = AdaptedModel.from_file(path).factors["latency_ms"]
        return factors.widths, factors.explained
    return LATENCY_PARTS.scaled(_DEVIATION, _DEVIATION), None


def most_telling(rows: Values, number: int, prior: Widths, explained: Values | None) -> list[tuple[int, float]]:
    """The rows that lower the variance of all rows most, one after the other, and the share of it that is left."""
    covariance = (rows * prior.variances()) @ rows.T
    at_first = float(np.trace(covariance))
    if explained is not None:
        part = explained @ rows.T
        covariance = covariance - part.T @ part
    taken: list[tuple[int, float]] = []
    for _ in range(min(number, len(rows))):
        gains = (covariance**2).sum(axis=0) / (np.diag(covariance) + prior.noise**2)
        gains[[place for place, _ in taken]] = -1.0
        best = int(np.argmax(gains))
        column = covariance[:, best]
        covariance = covariance - np.outer(column, column) / (column[best] + prior.noise**2)
        taken.append((best, float(np.trace(covariance)) / at_first))
    return taken


def plan_text(device: str, chosen: tuple[Candidate, ...], *, is_cpu: bool = False) -> str:
    """A plan for ``foretell collect``: one part for each batch size and dtype."""
    parts: dict[tuple[int, str], list[str]] = {}
    for one in chosen:
        parts.setdefault((one.batch_size, one.dtype), []).append(one.model)
    text = [f"# The models from which foretell adapt would learn most about {device}.", "seed = 0"]
    # slow devices may take seconds for what an H200 does in milliseconds; nothing here needs traces of kernels
    text += ["", "[limits]", "max_latency_ms = 20000.0", "timeout_s = 600.0", "", "[measuring]", "trace_share = 0.0"]
    # on a CPU a run may take seconds, and the usual sixty of them minutes
    text += ["warmups = 2", "tries = 1", "longest_s = 5.0"] if is_cpu else []
    text += ["", "[workers]", "measure = 1", "trace = 0"]
    for (batch, dtype), models in parts.items():
        zoos = sorted({model.partition(":")[0] for model in models})
        text += [
            "", "[[part]]", f'name = "batch-{batch}-{dtype}"', f"share = {len(models) / len(chosen):.3f}",
            f"zoos = {json.dumps(zoos)}", f"specs = {json.dumps(models)}", f"batch_sizes = [{batch}]",
            f"first_batch_sizes = [{batch}]", f'dtypes = ["{dtype}"]', "per_model = 1",
        ]  # fmt: skip
    return "\n".join(text) + "\n"
