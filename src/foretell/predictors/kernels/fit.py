"""Predictors: fitting of classifiers of kernels to units of work and the kernel class that a trace saw.

The output weights of a class are the sum of its own weights and of those of its parts: algorithm, layout, and tile. So
a tile that is rare in one layout is learned from others. After the fit the sums replace the parts, and the network that
is served has plain output weights.

The loss is cross-entropy over the classes that were seen with units of the same kind and phase. A pair of a unit and a
class that occurs n times has the weight √n: common layers do not drown rare ones.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.errors import InputError
from foretell.optional import require
from foretell.predictors.kernels.classifier import KernelClassifier, rows_by_network
from foretell.predictors.kernels.inputs import GROUPS, TILE_WIDTH, KernelInputs, describe_tiles
from foretell.predictors.kernels.network import CLIP_AT, KernelNetwork, weight_names

_CODES = 600  # more than there are operators
_WARM_UP = 0.15
_LARGEST_STEP = 1.0
_REPORT_S = 10.0
_IMPOSSIBLE = -1e4  # the score of a class that is not allowed
_TILE = re.compile(r"(\d+)x(\d+)")

Log = Callable[[str], None]
Values = NDArray[np.float32]


@dataclass(frozen=True)
class KernelFit:
    """The size of a network and how it is fitted; ``dropped`` is the dropout rate of its last layer."""

    width: int = 160
    blocks: int = 2
    embedding: int = 16
    epochs: int = 14
    batch: int = 1024
    rate: float = 3e-3
    decay: float = 1e-2
    dropped: float = 0.2
    average: float = 0.995
    members: int = 2
    seed: int = 0


FIT_VERSION = 1  # raise it when fitting changes: cached folds are then fitted again
FITS = {"products": KernelFit(), "others": KernelFit(width=96, epochs=10, members=1)}


def fit_kernels(
    units: KernelInputs,
    label: NDArray[np.intp],
    counts: NDArray[np.float64],
    classes: Sequence[str],
    device: str,
    sms: int,
    fits: Mapping[str, KernelFit] | None = None,
    log: Log = lambda _: None,
) -> KernelClassifier:
    """A classifier from units that were seen ``counts`` times each with the class ``classes[label]``."""
    if not len(units) or len(units) != len(label):
        raise InputError(f"Got {len(units)} units and {len(label)} classes; give n > 0 units with one class each.")
    first, counts = _distinct(units, label, counts)
    units, label, fits = units.of(first), label[first], fits or FITS
    networks = {}
    for part, rows in rows_by_network(units).items():
        if len(rows):
            log(f"{len(rows)} distinct units, {part}")
            networks[part] = _fit(units.of(rows), label[rows], counts[rows], classes, sms, fits[part], log)
    return KernelClassifier(device, tuple(classes), networks, {})


def _distinct(
    units: KernelInputs, label: NDArray[np.intp], counts: NDArray[np.float64]
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """The first row of each group of equal units with equal labels, and how often the group was seen."""
    keys = np.concatenate([units.numbers.T, [units.operators, label]])
    # equal rows are neighbours once sorted: a group begins where a row differs from the one before
    order = np.lexsort(keys)
    changes = np.zeros(len(order), bool)
    changes[0] = True
    for key in keys:
        sorted_key = key[order]
        changes[1:] |= sorted_key[1:] != sorted_key[:-1]
    group = np.empty(len(order), np.intp)
    group[order] = np.cumsum(changes) - 1
    return order[changes], np.bincount(group, counts).astype(np.float64)


def _fit(
    units: KernelInputs, label: NDArray[np.intp], counts: NDArray[np.float64], names: Sequence[str], sms: int,
    fit: KernelFit, log: Log,
) -> KernelNetwork:  # fmt: skip
    classes, target = np.unique(label, return_inverse=True)
    class_names = [names[number] for number in classes.tolist()]
    tiles = np.array(
        [list(map(int, match.groups())) if (match := _TILE.search(name)) else [0, 0] for name in class_names]
    )
    allowed = np.zeros((GROUPS, len(classes)), bool)
    allowed[units.groups, target] = True
    # a kind of unit that was never traced may run any class
    allowed[~allowed.any(axis=1)] = True
    spread = units.numbers.std(axis=0)
    network = KernelNetwork(
        {}, units.numbers.mean(axis=0), np.where(spread > 1e-6, spread, 1.0).astype(np.float32),
        classes.astype(np.int64), tiles.astype(np.float32), allowed, sms,
    )  # fmt: skip
    parts = _parts(class_names, tiles)
    members = [
        _member(network, units, target, counts, parts, fit, fit.seed + member, log) for member in range(fit.members)
    ]
    weights = {name: np.stack([member[name] for member in members]) for name in weight_names(fit.blocks)}
    return KernelNetwork(**{**vars(network), "weights": weights})


def _parts(names: Sequence[str], tiles: NDArray[np.int64]) -> Values:
    """A matrix of 0 and 1: the parts that each class has (algorithm, layout, both, height, width and tile)."""
    algorithm = [" ".join(name.split()[:2]) for name in names]
    layout = [name.split()[-1] for name in names]
    both = [f"{first} {second}" for first, second in zip(algorithm, layout, strict=True)]
    sizes = (tiles[:, 0], tiles[:, 1], [f"{height}x{width}" for height, width in tiles.tolist()])
    columns = []
    for values in (algorithm, layout, both, *sizes):
        known, place = np.unique(np.asarray(values), return_inverse=True)
        columns.append(place[:, None] == np.arange(len(known)))
    return np.concatenate(columns, axis=1).astype(np.float32)


def _member(
    network: KernelNetwork, units: KernelInputs, target: NDArray[np.intp], counts: NDArray[np.float64], parts: Values,
    fit: KernelFit, seed: int, log: Log,
) -> dict[str, Values]:  # fmt: skip
    """Fit one member of the ensemble; returns its weights."""
    torch = require("torch", extra="train", purpose="Fitting a network")
    torch.manual_seed(seed)
    arrays = _initial_weights(torch, units.numbers.shape[1], len(network.classes), parts.shape[1], fit)
    average = {name: array.clone() for name, array in arrays.items()}
    parameters = [array.requires_grad_() for array in arrays.values()]
    optimizer = torch.optim.AdamW(parameters, lr=fit.rate, weight_decay=fit.decay, betas=(0.9, 0.98))
    steps = max(len(units) // fit.batch, 1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, fit.rate, total_steps=fit.epochs * steps + 1, pct_start=_WARM_UP
    )
    batches = _Batches(torch, network, units, target, counts, parts)
    done, reported = 0, time.monotonic()
    for epoch in range(fit.epochs):
        order = torch.randperm(len(units)).numpy()
        for step in range(steps):
            loss = batches.loss(arrays, order[step * fit.batch : (step + 1) * fit.batch], fit)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, _LARGEST_STEP)
            optimizer.step()
            schedule.step()
            done += 1
            decay = min(fit.average, (1 + done) / (10 + done))
            torch._foreach_lerp_(list(average.values()), [array.detach() for array in parameters], 1 - decay)
        if time.monotonic() - reported > _REPORT_S:
            reported = time.monotonic()
            log(f"epoch {epoch + 1} of {fit.epochs}, loss {float(loss.detach()):.3f}")
    seen = np.isin(np.arange(_CODES), units.operators)
    # codes of operators that were never seen keep random values: 0 is neutral, and compresses well
    average["embedding"] = average["embedding"] * torch.tensor(seen)[:, None]
    # fold the weights of the parts into those of the classes
    average["leave"] = average["leave"] + average.pop("leave_part") @ batches.parts.T
    average["leave_bias"] = average["leave_bias"] + average.pop("leave_part_bias") @ batches.parts.T
    return {name: array.numpy().astype(np.float32) for name, array in average.items()}


def _initial_weights(torch: Any, numbers: int, classes: int, parts: int, fit: KernelFit) -> dict[str, Any]:
    """Random weights to start from."""
    width, fan = fit.width, numbers + fit.embedding
    arrays = {
        "embedding": torch.randn(_CODES, fit.embedding) * 0.3,
        "enter": torch.randn(numbers, width) * fan**-0.5,
        "enter_code": torch.randn(fit.embedding, width) * fan**-0.5,
        "enter_bias": torch.zeros(width),
        "last_scale": torch.ones(width),
        "leave": torch.randn(width, classes) * 0.02,
        "leave_bias": torch.zeros(classes),
        "leave_part": torch.randn(width, parts) * 0.02,
        "leave_part_bias": torch.zeros(parts),
        "weigh": torch.randn(width, TILE_WIDTH) * width**-0.5,
        "weigh_bias": torch.zeros(TILE_WIDTH),
    }
    for block in range(fit.blocks):
        arrays |= {
            f"scale{block}": torch.ones(width),
            f"up{block}": torch.randn(width, width) * width**-0.5,
            f"up_bias{block}": torch.zeros(width),
            f"down{block}": torch.randn(width, width) * 0.5 * width**-0.5,
            f"down_bias{block}": torch.zeros(width),
        }
    return arrays


class _Batches:
    """The rows as tensors, and the loss on some of them."""

    def __init__(
        self, torch: Any, network: KernelNetwork, units: KernelInputs, target: NDArray[np.intp],
        counts: NDArray[np.float64], parts: Values,
    ) -> None:  # fmt: skip
        self.torch = torch
        self.units = units
        self.sms = network.sms
        self.shapes, of_class = np.unique(network.tiles, axis=0, return_inverse=True)
        self.of_class = torch.tensor(of_class.ravel())
        numbers = np.clip((units.numbers - network.middle) / network.spread, -CLIP_AT, CLIP_AT)
        self.numbers = torch.tensor(numbers)
        self.codes = torch.tensor(units.operators)
        self.target = torch.tensor(target)
        self.allowed = torch.tensor(network.allowed)
        self.groups = torch.tensor(units.groups)
        self.weight = torch.tensor(np.sqrt(counts).astype(np.float32))
        self.parts = torch.tensor(parts)

    def loss(self, arrays: dict[str, Any], rows: NDArray[np.int64], fit: KernelFit) -> Any:
        """The mean cross-entropy of some rows."""
        functional = self.torch.nn.functional

        def normed(state: Any, scale: Any) -> Any:
            return state * self.torch.rsqrt(state.pow(2).mean(dim=1, keepdim=True) + 1e-6) * scale

        state = self.numbers[rows] @ arrays["enter"] + arrays["enter_bias"]
        state = state + arrays["embedding"][self.codes[rows]] @ arrays["enter_code"]
        for block in range(fit.blocks):
            inner = normed(state, arrays[f"scale{block}"]) @ arrays[f"up{block}"] + arrays[f"up_bias{block}"]
            state = state + functional.silu(inner) @ arrays[f"down{block}"] + arrays[f"down_bias{block}"]
        last = functional.dropout(functional.silu(normed(state, arrays["last_scale"])), fit.dropped)
        leave = arrays["leave"] + arrays["leave_part"] @ self.parts.T
        scores = last @ leave + (arrays["leave_bias"] + arrays["leave_part_bias"] @ self.parts.T)
        # the network of other units has no tiles
        if self.shapes.any() and self.units.is_product[rows].all():
            covered = self.torch.from_numpy(describe_tiles(self.units.of(rows), self.shapes, self.sms))
            tile_scores = (covered * (last @ arrays["weigh"] + arrays["weigh_bias"])[:, None]).sum(dim=2)
            scores = scores + tile_scores[:, self.of_class]
        scores = scores.masked_fill(~self.allowed[self.groups[rows]], _IMPOSSIBLE)
        losses = functional.cross_entropy(scores, self.target[rows], reduction="none")
        return (losses * self.weight[rows]).sum() / self.weight[rows].sum()
