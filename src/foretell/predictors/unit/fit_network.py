"""predictors: fitting of networks on units: traces teach units, replays their sums, measured power its mean, at once.

Where it is known which class of kernel ran a unit, that is taught too: whoever knows the kernel knows its steps. What
tells the class serves for nothing else, and is left behind when the fit is done.

Many networks are fitted side by side, each to its own samples: the folds of one fit, members, splits and seeds share
every product of matrices. On an accelerator a hundred take little longer than one; on a CPU a few take minutes.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.errors import InputError
from foretell.features.encoded import encode
from foretell.optional import require
from foretell.predictors.unit.bins import Bins
from foretell.predictors.unit.network import KERNEL_LIMITS, UnitNetwork, UnitPredictions, scaled, weight_names
from foretell.predictors.unit.rows import UnitRows

FIT_VERSION = 1  # raise it when fitting changes: kept networks are fitted again
_LONGEST_US = 2000.0
_UNIT_ERROR, _WHOLE_ERROR = 0.3, 0.05  # above these, errors count by their size, not by its square
_HEADROOM = 1.1
_FIRST_TOLD = (0.0, -2.0, 0.0)  # of kernel time, gap and power, before anything is learned
_CODES = 600  # more than there are operators
_WARM_UP = 0.15
_LARGEST_STEP = 1.0
_REPORT_S = 5.0
_PREDICTED_ROWS = 200_000
_BIN_SPREAD = 0.5
_CLASSED_ROWS = 2048  # of a batch, those whose kernel is asked for: there are hundreds of classes

Say = Callable[[str], None]
Classes = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class NetworkFit:
    """The size of a network and how it is fitted.

    ``batch`` counts workloads; ``whole``, ``power`` and ``kernel`` weigh sums, their power and the classes of kernels
    against units; ``dropout`` is the share of a block's inside that is left out at a time.
    """

    width: int = 288
    blocks: int = 3
    bins: int = 16
    embedding: int = 16
    epochs: int = 100
    batch: int = 128
    rate: float = 2e-3
    decay: float = 1e-2
    whole: float = 1.0
    power: float = 0.5
    kernel: float = 0.3
    dropout: float = 0.1
    average: float = 0.995
    seed: int = 0


def default_device() -> str:
    """``cuda`` where there is one."""
    torch = require("torch", extra="train", purpose="Fitting a network")
    return "cuda" if torch.cuda.is_available() else "cpu"


class Fitted:
    """Networks of one fit, on the device they were fitted on; the first axis of every array tells them apart."""

    def __init__(self, arrays: dict[str, Any], data: "_Data") -> None:
        self._arrays = arrays
        self._data = data

    def told(self) -> Iterator[UnitPredictions]:
        """What each network in turn tells of all rows it was fitted among."""
        torch, data = self._data.torch, self._data
        networks = len(self._arrays["embedding"])
        for number in range(networks):
            own = {name: array[number : number + 1] for name, array in self._arrays.items()}
            ratios, powers = [], []
            with torch.no_grad():
                for start in range(0, len(data.bound_us), _PREDICTED_ROWS):
                    part = slice(start, start + _PREDICTED_ROWS)
                    time_us, power_w, _ = _times_and_power(torch, own, data, part)
                    ratios.append(torch.log(time_us[0] / data.bound_us[part]).double().cpu().numpy())
                    powers += [power_w[0].double().cpu().numpy()] if power_w is not None else []
            yield UnitPredictions(np.concatenate(ratios), np.concatenate(powers) if powers else None)

    def network(self, members: list[int]) -> UnitNetwork:
        """Some of the networks as one that averages them."""
        weights = {name: array[members].float().cpu().numpy() for name, array in self._arrays.items()}
        return UnitNetwork(weights, self._data.bins, self._data.middle, self._data.spread, self._data.most_w)


class _Data:
    """The rows as tensors on a device."""

    def __init__(self, torch: Any, rows: UnitRows, bins: int, device: str, classes: Classes | None) -> None:
        self.torch = torch
        self.device = device
        encoded = encode(rows.features)
        if encoded.operators.max() >= _CODES:
            raise InputError(f"Operators have codes up to {encoded.operators.max()}; networks know {_CODES}.")
        self.bins = Bins.of(encoded.numbers, bins)
        numbers = self.bins.beside(encoded.numbers)
        spread = encoded.numbers.std(axis=0)
        self.middle = numbers.mean(axis=0)
        self.spread = np.append(np.where(spread > 1e-6, spread, 1.0), np.full(len(self.bins), _BIN_SPREAD))
        self.spread = self.spread.astype(np.float32)
        traced_us = np.where(rows.is_traced, rows.traced_us, rows.bound_us)
        weight = np.sqrt(np.minimum(traced_us, _LONGEST_US) * rows.counts) * rows.is_traced
        self.numbers = self._tensor(scaled(numbers, self.middle, self.spread))
        self.codes = torch.tensor(encoded.operators, device=device)
        self.launches = self._tensor(encoded.launches)
        self.counts = self._tensor(rows.counts)
        self.bound_us = self._tensor(rows.bound_us)
        self.log_ratio = self._tensor(np.log(traced_us / rows.bound_us))
        self.weight = self._tensor(weight / max(float(weight[rows.is_traced].mean()), 1e-9))
        self.starts = torch.tensor(rows.starts[:-1], device=device)
        self.sizes = torch.tensor(np.diff(rows.starts), device=device)
        self.log_latency = self._tensor(np.log(np.where(rows.whole, rows.latency_us, 1.0)))
        self.whole = self._tensor(rows.whole)
        metered = rows.whole & np.isfinite(rows.power_w)
        self.metered = self._tensor(metered)
        self.log_power = self._tensor(np.log(np.where(metered, rows.power_w, 1.0)))
        self.most_w: float | None = float(_HEADROOM * rows.power_w[metered].max()) if metered.any() else None
        self.kernels = 0 if classes is None else int(classes.max()) + 1
        self.classes: Any = None if classes is None else torch.tensor(np.asarray(classes, np.int64), device=device)

    def _tensor(self, values: NDArray[Any]) -> Any:
        return self.torch.tensor(np.asarray(values, np.float32), device=self.device)

    def rows_of(self, samples: Any) -> tuple[Any, Any]:
        """The rows of some samples, and which of the samples each belongs to."""
        sizes = self.sizes[samples]
        owner = self.torch.repeat_interleave(self.torch.arange(len(samples), device=self.device), sizes)
        first = self.torch.repeat_interleave(self.torch.cumsum(sizes, 0) - sizes, sizes)
        within = self.torch.arange(len(owner), device=self.device) - first
        return self.starts[samples][owner] + within, owner


def fit_networks(
    rows: UnitRows,
    learns: NDArray[np.bool_],
    fit: NetworkFit,
    device: str = "cpu",
    say: Say = lambda _: None,
    classes: Classes | None = None,
) -> Fitted:
    """One network for each row of ``learns``, which says for each sample whether the network learns from it.

    ``classes`` says of each unit which class of kernel ran it, −1 where that is not known.
    """
    torch = require("torch", extra="train", purpose="Fitting a network")
    if not rows.is_traced.any() or not rows.whole.any():
        raise InputError("Networks learn from traced and from replayed workloads; give some of both.")
    torch.backends.cuda.matmul.allow_tf32 = True
    data = _Data(torch, rows, fit.bins, device, classes)
    draw = torch.Generator().manual_seed(fit.seed)
    arrays = {name: array.to(device) for name, array in _drawn(torch, draw, len(learns), data, fit).items()}
    average = {name: array.clone() for name, array in arrays.items()}
    chance = torch.Generator(device).manual_seed(fit.seed)
    head = _class_head(torch, draw, len(learns), data, fit)
    kept_parameters = [array.requires_grad_() for array in arrays.values()]
    parameters = kept_parameters + [array.requires_grad_() for array in head]
    optimizer = torch.optim.AdamW(parameters, lr=fit.rate, weight_decay=fit.decay, betas=(0.9, 0.98))
    batch = min(fit.batch, learns.shape[1])
    steps = learns.shape[1] // batch
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, fit.rate, total_steps=fit.epochs * steps + 1, pct_start=_WARM_UP
    )
    taught = torch.tensor(learns, dtype=torch.float32, device=device)
    done, reported = 0, time.monotonic()
    for epoch in range(fit.epochs):
        order = torch.randperm(learns.shape[1], generator=draw).to(device)
        for step in range(steps):
            loss = _loss(torch, arrays, data, order[step * batch : (step + 1) * batch], taught, fit, head, chance)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, _LARGEST_STEP * len(learns) ** 0.5)
            optimizer.step()
            schedule.step()
            done += 1
            kept = min(fit.average, (1 + done) / (10 + done))
            torch._foreach_lerp_(list(average.values()), [each.detach() for each in kept_parameters], 1 - kept)
        if time.monotonic() - reported > _REPORT_S:
            reported = time.monotonic()
            mean_loss = float(loss.detach()) / len(learns)
            say(f"{len(learns)} networks, epoch {epoch + 1} of {fit.epochs}, loss {mean_loss:.3f}")
    return Fitted(average, data)


def _drawn(torch: Any, draw: Any, networks: int, data: _Data, fit: NetworkFit) -> dict[str, Any]:
    """Random weights to begin with."""

    def normal(*shape: int, scale: float) -> Any:
        return torch.randn(networks, *shape, generator=draw) * scale

    numbers, width = data.numbers.shape[1], fit.width
    fan = numbers + fit.embedding
    arrays = {
        "embedding": normal(_CODES, fit.embedding, scale=0.3),
        "enter": normal(numbers, width, scale=fan**-0.5),
        "enter_code": normal(fit.embedding, width, scale=fan**-0.5),
        "enter_bias": torch.zeros(networks, 1, width),
        "last_scale": torch.ones(networks, 1, width),
        "leave": normal(width, len(_FIRST_TOLD), scale=0.1 * width**-0.5),
        "leave_bias": torch.tensor(_FIRST_TOLD).repeat(networks, 1, 1),
    }
    for block in range(fit.blocks):
        arrays |= {
            f"scale{block}": torch.ones(networks, 1, width),
            f"up{block}": normal(width, width, scale=(2 / width) ** 0.5),
            f"up_bias{block}": torch.zeros(networks, 1, width),
            f"down{block}": normal(width, width, scale=0.5 * width**-0.5),
            f"down_bias{block}": torch.zeros(networks, 1, width),
        }
    return {name: arrays[name] for name in weight_names(fit.blocks)}


def _class_head(torch: Any, draw: Any, networks: int, data: _Data, fit: NetworkFit) -> list[Any]:
    """Random weights of what tells the class of a kernel; none where no class is known."""
    if not data.kernels:
        return []
    weights = torch.randn(networks, fit.width, data.kernels, generator=draw) * 0.3 * fit.width**-0.5
    return [weights.to(data.device), torch.zeros(networks, 1, data.kernels, device=data.device)]


def _inside(torch: Any, arrays: dict[str, Any], data: _Data, rows: Any, drop: Callable[[Any], Any]) -> Any:
    """What every network makes of some rows before it tells anything; ``drop`` leaves out parts of it."""

    def normed(state: Any, scale: Any) -> Any:
        return state * torch.rsqrt(state.pow(2).mean(dim=2, keepdim=True) + 1e-6) * scale

    networks, silu = len(arrays["embedding"]), torch.nn.functional.silu
    numbers = data.numbers[rows].expand(networks, -1, -1)
    state = torch.baddbmm(arrays["enter_bias"], numbers, arrays["enter"])
    state = torch.baddbmm(state, arrays["embedding"][:, data.codes[rows]], arrays["enter_code"])
    for block in range(sum(name.startswith("up_bias") for name in arrays)):
        inner = normed(state, arrays[f"scale{block}"])
        inner = drop(silu(torch.baddbmm(arrays[f"up_bias{block}"], inner, arrays[f"up{block}"])))
        state = state + torch.baddbmm(arrays[f"down_bias{block}"], inner, arrays[f"down{block}"])
    return silu(normed(state, arrays["last_scale"]))


def _times_and_power(
    torch: Any, arrays: dict[str, Any], data: _Data, rows: Any, inside: Any = None
) -> tuple[Any, Any, Any]:
    """Time and, where any was measured, power of some rows, and the logarithm that was told of the kernel time."""
    if inside is None:
        inside = _inside(torch, arrays, data, rows, lambda values: values)
    told = torch.baddbmm(arrays["leave_bias"], inside, arrays["leave"])
    kernel_us = torch.exp(told[:, :, 0].clamp(*KERNEL_LIMITS)) * data.bound_us[rows]
    gap_us = torch.nn.functional.softplus(told[:, :, 1]) * data.launches[rows]
    power_w = data.most_w * torch.sigmoid(told[:, :, 2]) if data.most_w is not None else None
    return kernel_us + gap_us, power_w, told[:, :, 0]


def _loss(
    torch: Any, arrays: dict[str, Any], data: _Data, samples: Any, taught: Any, fit: NetworkFit, head: list[Any],
    chance: Any,
) -> Any:  # fmt: skip
    def drop(values: Any) -> Any:
        kept = torch.empty_like(values).bernoulli_(1 - fit.dropout, generator=chance)
        return values * kept / (1 - fit.dropout)

    def wrong(told: Any, truth: Any, weight: Any, most: float) -> Any:
        error = torch.nn.functional.huber_loss(told, truth.expand_as(told), reduction="none", delta=most) / most
        return (error * weight).sum(dim=1) / weight.sum(dim=1).clamp_min(1.0)

    def sums(values: Any) -> Any:
        found = torch.zeros(len(values), len(samples), device=data.device)
        return found.index_add(1, owner, values * data.counts[rows]).clamp_min(1e-3)

    rows, owner = data.rows_of(samples)
    taught = taught[:, samples]
    inside = _inside(torch, arrays, data, rows, drop)
    time_us, power_w, told = _times_and_power(torch, arrays, data, rows, inside)
    unit = wrong(told, data.log_ratio[rows], taught[:, owner] * data.weight[rows], _UNIT_ERROR)
    total_us = sums(time_us)
    whole = wrong(torch.log(total_us), data.log_latency[samples], taught * data.whole[samples], _WHOLE_ERROR)
    loss = unit + fit.whole * whole
    if power_w is not None:
        # power must not teach how long anything takes
        log_power = torch.log(sums(time_us.detach() * power_w) / total_us.detach())
        weight = taught * data.metered[samples]
        loss = loss + fit.power * wrong(log_power, data.log_power[samples], weight, _WHOLE_ERROR)
    if head:
        asked = torch.randint(len(rows), (min(_CLASSED_ROWS, len(rows)),), generator=chance, device=data.device)
        classes = data.classes[rows[asked]]
        likely = torch.baddbmm(head[1], inside[:, asked], head[0]).flatten(0, 1)
        error = torch.nn.functional.cross_entropy(
            likely, classes.clamp_min(0).repeat(len(taught)), reduction="none"
        ).view(len(taught), -1)
        weight = taught[:, owner[asked]] * (classes >= 0)
        loss = loss + fit.kernel * (error * weight).sum(dim=1) / weight.sum(dim=1).clamp_min(1.0)
    return loss.sum()
