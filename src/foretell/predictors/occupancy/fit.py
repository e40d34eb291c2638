"""Predictors: fitting the network of occupancy to labelled units.

It has the form of the network on units (`foretell.predictors.unit.network`) and two outputs: the logit of a unit's
occupancy, and the logarithm of its time under a counter over its predicted time. Both losses are Huber losses, because
a few units run kernels that nothing else runs. Equal units count once: a network repeats its blocks, and many networks
repeat each other's.

Trees were tried first. On convolutions of new architectures they are 20 % off and the network 17 %
(``docs/lab/0032-occupancy.md``): a unit runs several kernels, and how their times mix is smooth in its sizes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.features.encoded import encode
from foretell.features.reuse import REUSE_COLUMNS
from foretell.features.units import COLUMNS
from foretell.optional import require
from foretell.predictors.occupancy.model import MOST_PCT
from foretell.predictors.unit.bins import Bins
from foretell.predictors.unit.network import UnitNetwork, scaled

FIT_VERSION = 1  # raise it when fitting changes: cached predictions are then made again
_LEAST_PCT = 0.5
_ERROR = 0.3  # Huber loss: errors above this are linear
_LEAST_WEIGHT = 0.02
_LEAST_SPREAD = 0.05  # a column that hardly varies is not blown up
_CODES = 600  # more than there are operators
_TINY = 1e-6
_WARM_UP = 0.15
_REPEATED = [COLUMNS.index(name) for name in REUSE_COLUMNS]

Values = NDArray[np.float64]
Log = Callable[[str], None]


@dataclass(frozen=True)
class NetworkFit:
    """The size of the network and how it is fitted; ``time`` is the weight of its second loss."""

    width: int = 128
    blocks: int = 2
    bins: int = 10
    embedding: int = 8
    epochs: int = 16
    batch: int = 512
    rate: float = 2e-3
    decay: float = 1e-2
    dropout: float = 0.05
    average: float = 0.995
    time: float = 0.5
    seed: int = 0
    members: int = 1  # networks that are averaged; each adds about 200 kB to the file


@dataclass(frozen=True)
class LabelledUnits:
    """Units with their occupancy, the logarithm of time under a counter over predicted time, and their importance."""

    features: NDArray[np.float32]
    occupancy_pct: Values
    log_time: Values
    weight: Values

    def of(self, rows: NDArray[np.bool_]) -> "LabelledUnits":
        """Some of the units."""
        return LabelledUnits(**{name: values[rows] for name, values in vars(self).items()})

    def distinct(self) -> "LabelledUnits":
        """One row for all units that differ at most in what is still in a cache: the most important of them."""
        order = np.argsort(-self.weight, kind="stable")
        keys = np.ascontiguousarray(np.delete(self.features[order], _REPEATED, axis=1))
        _, first = np.unique(keys.view(np.dtype((np.void, keys.itemsize * keys.shape[1])))[:, 0], return_index=True)
        kept = np.sort(order[first])
        return LabelledUnits(**{name: values[kept] for name, values in vars(self).items()})


def logit(occupancy_pct: Values) -> Values:
    """The logit of an occupancy; `MOST_PCT` is its upper end."""
    clipped = np.clip(occupancy_pct, _LEAST_PCT, 100.0)
    return np.log(clipped / (MOST_PCT - clipped))


def fit_network(units: LabelledUnits, fit: NetworkFit, device: str = "cpu", log: Log = lambda _: None) -> UnitNetwork:
    """Fit the members of a network to labelled units; equal data and seed give equal weights on a CPU."""
    torch = require("torch", extra="train", purpose="Fitting a network")
    units = units.distinct()
    encoded = encode(units.features)
    bins = Bins.of(encoded.numbers, fit.bins)
    numbers = bins.with_positions(encoded.numbers)
    middle = numbers.mean(axis=0)
    spread = np.maximum(numbers.std(axis=0), _LEAST_SPREAD)
    targets = np.stack([logit(units.occupancy_pct), units.log_time], axis=1).astype(np.float32)
    weight = (np.sqrt(units.weight) + _LEAST_WEIGHT).astype(np.float32)
    rows = [
        torch.from_numpy(np.ascontiguousarray(array)).to(device)
        for array in (scaled(numbers, middle, spread), np.minimum(encoded.operators, _CODES - 1), targets, weight)
    ]
    members = []
    for member in range(fit.members):
        generator = torch.Generator().manual_seed(fit.seed + member)
        weights = _start(torch, fit, numbers.shape[1], targets.mean(axis=0), generator, device)
        members.append(_train(torch, rows, weights, fit, generator, log))
    # the first axis is the member; vectors are rows, as `UnitNetwork` stores them
    arrays = {
        name: np.stack([one[name].reshape(-1, one[name].shape[-1]).float().cpu().numpy() for one in members])
        for name in members[0]
    }
    # codes of operators that no row has keep random values: 0 is neutral, and compresses well
    seen = np.isin(np.arange(_CODES), encoded.operators)
    arrays["embedding"] = arrays["embedding"] * seen[:, None].astype(np.float32)
    return UnitNetwork(arrays, bins, middle.astype(np.float32), spread.astype(np.float32))


def _start(
    torch: Any, fit: NetworkFit, inputs: int, means: NDArray[np.float32], generator: Any, device: str
) -> dict[str, Any]:
    """Random weights by their names in `UnitNetwork`; the last layer begins with the means of the targets."""
    width = fit.width

    def random(rows: int, columns: int, scale: float = 1.0) -> Any:
        return torch.randn(rows, columns, generator=generator) * (scale / math.sqrt(rows))

    weights = {
        "embedding": torch.randn(_CODES, fit.embedding, generator=generator),
        "enter": random(inputs, width),
        "enter_code": random(fit.embedding, width),
        "enter_bias": torch.zeros(width),
    }
    for block in range(fit.blocks):
        weights |= {
            f"scale{block}": torch.ones(width),
            f"up{block}": random(width, 2 * width),
            f"up_bias{block}": torch.zeros(2 * width),
            f"down{block}": random(2 * width, width, 0.5),
            f"down_bias{block}": torch.zeros(width),
        }
    weights |= {
        "last_scale": torch.ones(width),
        "leave": random(width, len(means), 0.1),
        "leave_bias": torch.from_numpy(means.copy()),
    }
    return {name: array.to(device).requires_grad_() for name, array in weights.items()}


def _train(
    torch: Any, rows: list[Any], weights: dict[str, Any], fit: NetworkFit, generator: Any, log: Log
) -> dict[str, Any]:
    """The moving average of the weights over all steps; the learning rate follows one cycle."""
    numbers, codes, targets, weight = rows
    optimizer = torch.optim.AdamW(weights.values(), lr=fit.rate, weight_decay=fit.decay)
    steps = max(len(numbers) // fit.batch, 1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, fit.rate, total_steps=fit.epochs * steps, pct_start=_WARM_UP
    )
    averaged = {name: array.detach().clone() for name, array in weights.items()}
    importance = torch.tensor([1.0, fit.time], device=numbers.device)
    torch.manual_seed(generator.initial_seed())  # of the dropout
    for epoch in range(fit.epochs):
        order, total = torch.randperm(len(numbers), generator=generator).to(numbers.device), 0.0
        for start in range(0, steps * fit.batch, fit.batch):
            part = order[start : start + fit.batch]
            outputs = _forward(torch, weights, numbers[part], codes[part], fit)
            losses = torch.nn.functional.huber_loss(outputs, targets[part], reduction="none", delta=_ERROR)
            loss = ((losses * importance).sum(1) * weight[part]).sum() / weight[part].sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
            with torch.no_grad():
                for name, array in weights.items():
                    averaged[name].lerp_(array, 1.0 - fit.average)
        log(f"epoch {epoch + 1} of {fit.epochs}: loss {total / steps:.4f}")
    return averaged


def _forward(torch: Any, weights: dict[str, Any], numbers: Any, codes: Any, fit: NetworkFit) -> Any:
    """What `UnitNetwork.forward` computes, with dropout."""
    silu, dropout = torch.nn.functional.silu, torch.nn.functional.dropout

    def normed(state: Any) -> Any:
        return state / torch.sqrt((state * state).mean(-1, keepdim=True) + _TINY)

    state = numbers @ weights["enter"] + weights["embedding"][codes] @ weights["enter_code"] + weights["enter_bias"]
    for block in range(fit.blocks):
        inner = silu(normed(state) * weights[f"scale{block}"] @ weights[f"up{block}"] + weights[f"up_bias{block}"])
        state = state + dropout(inner, fit.dropout) @ weights[f"down{block}"] + weights[f"down_bias{block}"]
    return silu(normed(state) * weights["last_scale"]) @ weights["leave"] + weights["leave_bias"]
