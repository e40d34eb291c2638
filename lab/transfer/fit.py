"""Lab: the numbers of `foretell.predictors.transfer`, fitted to public measurements of many GPUs at once.

Robust least squares on log(measured / predicted). The shares of the bandwidth come first, from element-wise operators,
which do nothing but stream. With these shares the rest follows: what arithmetic units draw, and a factor for each class
of unit. Each device and operator has the same weight, however many shapes of it were measured. A number that the
measurements do not determine stays where it started.

aiconfigurator measured an H200 too, with other libraries than ours: its own time of a shape there is the start, so that
the numbers learn what another GPU changes and not what another library does.

    python -m lab fit transfer TABLES
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foretell.devices import find_device
from foretell.predictors.fitted_files import write_fitted
from foretell.predictors.least_squares import solve
from foretell.predictors.roofline import CONSTANTS_FROM
from foretell.predictors.transfer.model import (
    CLASSES,
    FILE,
    TransferModel,
    UnitWork,
    write,
)
from foretell.predictors.transfer.places import MEMORIES, Places
from foretell.predictors.transfer.shapes import SHAPED, Shape, products, sizes_of
from foretell.records import Target
from lab.transfer.examples import Examples, joined, read_examples

MODELS = 100  # of each of timm's runs
START = TransferModel(
    {"stacked": 0.9, "stacked, old": 0.78, "checked": 0.78, "plain": 0.92}, 1.2, 0.8, 0.9,
    dict.fromkeys(CLASSES, 0.0), {},
)  # fmt: skip
OLD = ("convolution", "rows")  # classes that differ on GPUs older than Ampere
_NAMES = (*MEMORIES, "cached", "tensor", "vector", *CLASSES, *(f"old {name}" for name in OLD))
# how strongly each number stays at its start; element-wise operators have told the shares of the bandwidth already
_FIXED, _HELD = 30.0, 9.0
_HOLDS = np.array([_FIXED] * len(MEMORIES) + [0.5, 2.0, 2.0] + [1.0] * (len(CLASSES) + len(OLD)))
_HOLDS[_NAMES.index("elementwise")] = _FIXED
_WEIGHT = 3.0  # of all measurements of an operator on a device together
_DELTA, _STEP, _STEPS = 0.1, 1e-3, 8
_ENOUGH = 60  # measurements of an operator on a device that are fitted to
_LEAST_SHAPED = 25  # measurements of a kind of `SHAPED`, without which it has no shape
# of shapes
_RIDGE, _LEVEL_RIDGE, _FARTHEST, _TRUSTED = 0.05, 0.3, 1.0, 0.15
_SHAPE_ROUNDS, _TRUST_ROUNDS = 3, 6
_LEAST_ATTENTION_US = 60.0  # on an H200: below it, frameworks do more than the attention alone
Values = NDArray[np.float64]


def work_of(examples: Examples) -> UnitWork:
    """The units of all measurements."""
    compute_us, memory_us = examples.own.T
    return UnitWork(
        examples.features, examples.h200_us, compute_us, memory_us, examples.count, examples.first[:-1].astype(np.intp)
    )


def places_of(devices: Sequence[str]) -> Places:
    """Where measurements were made."""
    source = find_device(CONSTANTS_FROM)
    of = {name: Places.of(Target(find_device(name)).hardware, source) for name in set(devices)}
    fields = (np.concatenate([getattr(of[name], field) for name in devices]) for field in Places.__dataclass_fields__)
    return Places(*fields)


def tell_us(model: TransferModel, examples: Examples) -> Values:
    """What a model tells for each measurement."""
    told = model.times_us(work_of(examples), places_of(list(examples.device)), find_device(CONSTANTS_FROM))
    return examples.summed(told.times_us)


def from_known(examples: Examples) -> Examples:
    """The same with the H200's own times where a table has them, instead of the network's."""
    is_table = examples.source == "aiconfigurator"
    rows = zip(examples.name, examples.measured_us, is_table & (examples.device == CONSTANTS_FROM), strict=True)
    measured = {name: us for name, us, is_known in rows if is_known}
    times = examples.h200_us.copy()
    for place in np.flatnonzero(is_table):
        times[examples.first[place]] = measured.get(examples.name[place], times[examples.first[place]])
    return replace(examples, h200_us=times)


def read(tables: Path, store: Path, cache: Path, models: int = MODELS) -> tuple[Examples, Examples]:
    """Operators and networks of all GPUs but the measured one: with the network's times there, and with known ones."""
    operators = read_examples(tables, cache)
    known = from_known(operators)
    is_attention = np.char.startswith(operators.name.astype(str), "Attention")
    keep = ~is_attention | (known.h200_us[known.first[:-1]] >= _LEAST_ATTENTION_US)
    keep &= operators.device != CONSTANTS_FROM
    networks = read_examples(tables, cache, graphs=store / "graphs", models=models)
    return joined(operators.at(keep), networks), joined(known.at(keep), networks)


def groups_of(examples: Examples) -> NDArray[np.str_]:
    """Device, source and operator of each measurement, as one text; networks have no operator."""
    rows = zip(examples.device, examples.source, examples.name, strict=True)
    return np.array([f"{d}|{s}|{'' if s.startswith('timm') else n.split()[0]}" for d, s, n in rows])


def fit(known: Examples, without: Iterable[str] = ()) -> TransferModel:
    """The numbers, from all devices but some; of each operator on a device a few measurements."""
    groups, random = groups_of(known), np.random.default_rng(0)
    chosen = np.zeros(len(known), bool)
    for group in np.unique(groups):
        chosen[random.permutation(np.flatnonzero(groups == group))[:_ENOUGH]] = True
    few = known.at(chosen & ~np.isin(known.device, list(without)))
    is_single = np.diff(few.first) == 1
    streams = is_single & (work_of(few).classes[few.first[:-1]] == CLASSES.index("elementwise"))
    start = np.log(
        [*(START.memory_shares[name] for name in MEMORIES), START.cached_share, START.tensor_demand,
         START.vector_demand, *(1.0 for _ in (*CLASSES, *OLD))]
    )  # fmt: skip
    is_share = np.arange(len(start)) < len(MEMORIES)
    streaming = _solved(few.at(streams), start, np.where(is_share, 0.1, _HELD))
    model = _model(_solved(few, np.where(is_share, streaming, start), _HOLDS))
    operators = known.at(is_operator(known) & ~np.isin(known.device, list(without)))
    shapes = {name: _shape(name, model, operators) for name in SHAPED}
    return replace(model, shapes={name: shape for name, shape in shapes.items() if shape is not None})


def is_operator(examples: Examples) -> NDArray[np.bool_]:
    """Whether a measurement is one of a single operator."""
    return ~np.char.startswith(examples.source.astype(str), "timm")


def _shape(name: str, model: TransferModel, operators: Examples) -> Shape | None:
    """How what is left of the errors follows the sizes of units: robust ridge regression, each device equal.

    Each device has a level of its own, which is not kept; the level of a shape that starts from peaks is their mean.
    """
    work, places = work_of(operators), places_of(list(operators.device))
    from_peaks = SHAPED[name].from_peaks
    chosen = work.is_shaped(name) & ((places.oldest if from_peaks else places.older) > 0)
    if chosen.sum() < _LEAST_SHAPED:
        return None
    some, devices = operators.at(chosen), operators.device[chosen]
    sizes = sizes_of(name, work.features[chosen], work.source_us[chosen])
    means, deviations = sizes.mean(axis=0), np.maximum(sizes.std(axis=0), 1e-6)
    rows = products(sizes, means.tolist(), deviations.tolist())
    is_device = (devices[:, None] == np.unique(devices)[None]).astype(np.float64)
    weights = (is_device / np.sqrt(is_device.sum(axis=0))).sum(axis=1)
    holds = np.concatenate([np.full(rows.shape[1], _RIDGE), np.full(is_device.shape[1], _LEVEL_RIDGE), [1e-6]])
    columns = np.concatenate([rows, is_device, np.ones((len(rows), 1))], axis=1)
    shape = Shape(means.tolist(), deviations.tolist(), 0.0, [0.0] * rows.shape[1])
    # the clock that a device holds, and so its time without the shape, depends on the shape
    for _ in range(_SHAPE_ROUNDS if from_peaks else 1):
        told = tell_us(replace(model, shapes={name: shape}), some)
        rest = np.log(some.measured_us / told) + shape.logs(sizes)
        rest = rest if from_peaks else np.clip(rest, -_FARTHEST, _FARTHEST)
        trust = np.ones(len(rest))
        for _ in range(_TRUST_ROUNDS):
            weighted = columns * (weights * np.sqrt(trust))[:, None]
            gram = weighted.T @ weighted + np.diag(holds)
            found = np.linalg.solve(gram, weighted.T @ (rest * weights * np.sqrt(trust)))
            trust = 1.0 / np.maximum(1.0, np.abs(rest - columns @ found) / _TRUSTED)
        terms = found[: rows.shape[1]]
        level = float(found[-1]) if from_peaks else -float(rows.mean(axis=0) @ terms)
        shape = replace(shape, level=level, terms=terms.tolist())
    return Shape(_rounded(shape.means), _rounded(shape.deviations), _rounded([shape.level])[0], _rounded(shape.terms))


def _rounded(numbers: Sequence[float]) -> list[float]:
    return [float(f"{number:.5g}") for number in numbers]


def _solved(examples: Examples, start: Values, holds: Values) -> Values:
    """The parameters that fit best; ``holds`` says how strongly each stays at its start."""
    work, places, source = work_of(examples), places_of(list(examples.device)), find_device(CONSTANTS_FROM)
    _, member, counts = np.unique(groups_of(examples), return_inverse=True, return_counts=True)
    weights, logs = _WEIGHT / np.sqrt(counts[member]), np.log(examples.measured_us)

    def errors(parameters: Values) -> Values:
        times = _model(parameters).times_us(work, places, source).times_us
        return np.concatenate([weights * (logs - np.log(examples.summed(times))), holds * (parameters - start)])

    def errors_at(parameters: Values) -> tuple[Values, Values]:
        now = errors(parameters)
        slopes = [(errors(parameters + _STEP * row) - now) / _STEP for row in np.eye(len(parameters))]
        return now, np.stack(slopes, axis=1)

    return solve(errors_at, start, _DELTA, _STEPS)


def _model(parameters: Values) -> TransferModel:
    values = dict(zip(_NAMES, parameters.tolist(), strict=True))
    shares = {name: float(np.exp(values[name])) for name in MEMORIES}
    cached, tensor, vector = (float(np.exp(values[name])) for name in ("cached", "tensor", "vector"))
    old_factors = {name: values[f"old {name}"] for name in OLD}
    return TransferModel(shares, cached, tensor, vector, {name: values[name] for name in CLASSES}, old_factors)


def write_model(known: Examples, widths: tuple[float, float, float], card: dict[str, object], folder: Path) -> Path:
    """Fit to all devices, and write the file that ships; ``widths`` come from devices that were left out."""
    device, unit, far = widths
    fitted = fit(known)
    architectures = tuple(sorted({find_device(name).architecture for name in set(known.device)}))
    model = replace(fitted, device_width=device, unit_width=unit, far_width=far, architectures=architectures)
    return write_fitted(folder, FILE, write(model, card))
