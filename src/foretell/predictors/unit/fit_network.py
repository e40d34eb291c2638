"""Predictors: fitting of networks on units: traces, replays and measured power in one loss.

Idea. The loss has up to four terms. (1) For every traced unit, log(kernel time / bound). (2) For every replayed
workload, the logarithm of the sum of its units: this is what teaches the gaps between kernels, and units that no trace
has timed. (3) The mean power of a workload, weighted by time. (4) Where a trace says which class of kernel ran a unit,
the class (an auxiliary task): the kernel decides at which sizes the time has steps. The head for the classes is
thrown away after the fit. All terms are Huber losses on logarithms, so a large error counts by its size and does not
dominate.

Many networks are fitted side by side, each to its own samples. The first axis of every weight is the network, and all
products of matrices are batched over it: folds, members, splits and seeds share them. On a GPU a hundred networks take
little longer than one; on a CPU a few take minutes.

The weights that are kept are an exponential moving average over the steps, and the learning rate follows one cycle (L.
Smith and N. Topin, Super-Convergence, 2019).

Limits: PyTorch on a GPU is not deterministic to the last bit, so that equal seeds give nearly equal networks.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.errors import InputError
from foretell.features.encoded import Encoded, encode
from foretell.optional import require
from foretell.predictors.unit.bins import Bins
from foretell.predictors.unit.blocks import blocks_for, plain_blocks, weights_of
from foretell.predictors.unit.network import CLIP_AT, KERNEL_LIMITS, UnitNetwork, UnitPredictions, scaled, weight_names
from foretell.predictors.unit.rows import UnitRows

FIT_VERSION = 3  # raise it when fitting changes: cached networks are then fitted again
_LONGEST_US = 2000.0  # beyond this, a longer unit weighs no more
_UNIT_ERROR, _WHOLE_ERROR = 0.15, 0.05  # Huber loss: errors above these are linear
_HEADROOM = 1.1  # of the largest measured power: a sigmoid never reaches its upper end
_FIRST_BIASES = (0.0, -2.0, 0.0)  # of the outputs kernel time, gap and power
_CODES = 600  # more than there are operators
_WARM_UP = 0.15
_LARGEST_STEP = 1.0
_REPORT_S = 5.0
_PREDICTED_ROWS = 200_000
_BIN_SPREAD = 0.5  # positions within bins lie between 0 and 1 as they are
_CLASSED_ROWS = 2048  # rows of a batch in the loss of kernel classes: with hundreds of classes all would be slow

Log = Callable[[str], None]
Classes = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class NetworkFit:
    """The size of a network and how it is fitted.

    ``batch`` counts workloads; ``whole``, ``power`` and ``kernel`` are the weights of the terms of the loss beside the
    units; ``average`` is the decay of the moving average of the weights. ``bf16``: the products of the blocks are in
    bf16, as they are on a GPU (None); a processor with AVX-512 for it takes a third of the time.
    """

    width: int = 320
    blocks: int = 4
    bins: int = 16
    embedding: int = 16
    epochs: int = 200
    batch: int = 128
    rate: float = 2e-3
    decay: float = 1e-2
    whole: float = 1.0
    power: float = 0.5
    kernel: float = 0.3
    dropout: float = 0.05
    average: float = 0.995
    bf16: bool | None = None
    seed: int = 0


def default_device() -> str:
    """``cuda`` where PyTorch finds a GPU, else ``cpu``."""
    torch = require("torch", extra="train", purpose="Fitting a network")
    return "cuda" if torch.cuda.is_available() else "cpu"


class FittedNetworks:
    """The networks of one fit, on the device they were fitted on; the first axis of every array is the network."""

    def __init__(self, arrays: dict[str, Any], data: "_Data") -> None:
        self._arrays = arrays
        self._data = data

    def predictions(self) -> Iterator[UnitPredictions]:
        """The predictions of each network in turn, for all rows of the fit."""
        for number in range(len(self._arrays["embedding"])):
            yield UnitPredictions.mean_of(*self._predicted([number], self._data))

    def told(self, members: Sequence[int], units: Encoded, bound_us: NDArray[np.float64]) -> UnitPredictions:
        """What some of the networks say together of any units."""
        parts: list[tuple[list[NDArray[np.float64]], list[NDArray[np.float64]]]] = []
        for start in range(0, len(bound_us), _PREDICTED_ROWS):
            part = slice(start, start + _PREDICTED_ROWS)
            data = self._data.of(units, bound_us, part)
            parts.append(self._predicted(members, data))
        ratios, powers = (
            [np.concatenate(own) for own in zip(*column, strict=True)] for column in zip(*parts, strict=True)
        )
        return UnitPredictions.mean_of(ratios, powers)

    def _predicted(
        self, members: Sequence[int], data: "_Data | _Units"
    ) -> tuple[list[NDArray[np.float64]], list[NDArray[np.float64]]]:
        """Log ratios and powers of each of the networks."""
        torch = self._data.torch
        ratios, powers = [], []
        for number in members:
            own = {name: array[number : number + 1] for name, array in self._arrays.items()}
            ratio, power = [], []
            with torch.no_grad():
                for start in range(0, len(data.bound_us), _PREDICTED_ROWS):
                    part = slice(start, start + _PREDICTED_ROWS)
                    time_us, power_w, _ = _times_and_power(torch, own, data, part)
                    ratio.append(torch.log(time_us[0] / data.bound_us[part]).double().cpu().numpy())
                    power += [power_w[0].double().cpu().numpy()] if power_w is not None else []
            ratios.append(np.concatenate(ratio))
            powers += [np.concatenate(power)] if power else []
        return ratios, powers

    def network(self, members: list[int]) -> UnitNetwork:
        """Some of the networks as the members of one."""
        weights = {name: array[members].float().cpu().numpy() for name, array in self._arrays.items()}
        # codes of operators that no row has keep random values: 0 is neutral, and compresses well
        seen = np.isin(np.arange(_CODES), self._data.codes.cpu().numpy())
        weights["embedding"] = weights["embedding"] * seen[:, None].astype(np.float32)
        return UnitNetwork(weights, self._data.bins, self._data.middle, self._data.spread, self._data.most_w)


@dataclass(frozen=True)
class _Units:
    """Units without a truth, as tensors on a device."""

    device: str
    numbers: Any
    codes: Any
    launches: Any
    bound_us: Any
    most_w: float | None


class _Data:
    """The rows as tensors on a device."""

    def __init__(self, torch: Any, rows: UnitRows, bins: int, device: str, classes: Classes | None) -> None:
        self.torch = torch
        self.device = device
        encoded = encode(rows.features)
        if encoded.operators.max() >= _CODES:
            raise InputError(
                f"Operators have codes up to {encoded.operators.max()}, but the embedding has {_CODES} rows."
            )
        self.bins = Bins.of(encoded.numbers, bins)
        numbers = self.bins.with_positions(encoded.numbers)
        spread = encoded.numbers.std(axis=0)
        self.middle = numbers.mean(axis=0)
        self.spread = np.append(np.where(spread > 1e-6, spread, 1.0), np.full(len(self.bins), _BIN_SPREAD))
        self.spread = self.spread.astype(np.float32)
        # a logarithm of NaN would poison the batch: rows without a trace have the bound and the weight 0
        traced_us = np.where(rows.is_traced, rows.traced_us, rows.bound_us)
        weight = np.sqrt(np.minimum(traced_us, _LONGEST_US) * rows.counts) * rows.is_traced
        self.numbers = self._tensor(scaled(numbers, self.middle, self.spread))
        self.codes = torch.tensor(encoded.operators, device=device)
        self.launches = self._tensor(encoded.launches)
        self.counts = self._tensor(rows.counts)
        self.bound_us = self._tensor(rows.bound_us)
        self.log_ratio = self._tensor(np.log(traced_us / rows.bound_us))
        self.weight = self._tensor(weight / max(float(weight[rows.is_traced].mean()), 1e-9))
        # all samples stay on the device; a batch is gathered there by index
        self.starts = torch.tensor(rows.starts[:-1], device=device)
        self.sizes = torch.tensor(np.diff(rows.starts), device=device)
        self.log_latency = self._tensor(np.log(np.where(rows.is_replayed, rows.latency_us, 1.0)))
        self.is_replayed = self._tensor(rows.is_replayed)
        metered = rows.is_replayed & np.isfinite(rows.power_w)
        self.metered = self._tensor(metered)
        self.log_power = self._tensor(np.log(np.where(metered, rows.power_w, 1.0)))
        self.most_w: float | None = float(_HEADROOM * rows.power_w[metered].max()) if metered.any() else None
        self.kernels = 0 if classes is None else int(classes.max()) + 1
        self.classes: Any = None if classes is None else torch.tensor(np.asarray(classes, np.int64), device=device)

    def _tensor(self, values: NDArray[Any]) -> Any:
        return self.torch.tensor(np.asarray(values, np.float32), device=self.device)

    def of(self, units: Encoded, bound_us: NDArray[np.float64], part: slice) -> "_Units":
        """Some other units, as the networks of this fit read them."""
        torch = self.torch
        numbers = self._tensor(units.numbers[part])
        columns = torch.tensor(self.bins.columns, device=self.device)
        through = (numbers[:, columns] - self._tensor(self.bins.lows)) / self._tensor(self.bins.widths)
        positions = torch.cat([numbers, through.clamp_(0.0, 1.0)], dim=1)
        positions = ((positions - self._tensor(self.middle)) / self._tensor(self.spread)).clamp_(-CLIP_AT, CLIP_AT)
        codes = torch.tensor(units.operators[part].clip(0, _CODES - 1), device=self.device)
        launches, bounds = self._tensor(units.launches[part]), self._tensor(bound_us[part])
        return _Units(self.device, positions, codes, launches, bounds, self.most_w)

    def rows_of(self, samples: Any) -> tuple[Any, Any]:
        """The rows of some samples, and for each row the position of its sample."""
        sizes = self.sizes[samples]
        owner = self.torch.repeat_interleave(self.torch.arange(len(samples), device=self.device), sizes)
        # position of each row within its sample = running number − running number of the sample's first row
        first = self.torch.repeat_interleave(self.torch.cumsum(sizes, 0) - sizes, sizes)
        within = self.torch.arange(len(owner), device=self.device) - first
        return self.starts[samples][owner] + within, owner


def fit_networks(
    rows: UnitRows,
    learns: NDArray[np.bool_],
    fit: NetworkFit,
    device: str = "cpu",
    log: Log = lambda _: None,
    classes: Classes | None = None,
) -> FittedNetworks:
    """Fit one network for each row of ``learns``, whose columns say which samples the network learns from.

    ``classes`` is the class of the kernel of each unit, −1 where it is unknown.
    """
    torch = require("torch", extra="train", purpose="Fitting a network")
    if not rows.is_traced.any() or not rows.is_replayed.any():
        raise InputError("Networks learn from traced and from replayed workloads; the samples must have some of both.")
    # TF32 products: much faster, and the rounding is far below the error of the network
    torch.backends.cuda.matmul.allow_tf32 = True
    data = _Data(torch, rows, fit.bins, device, classes)
    # weights and batches are drawn on the CPU, so that a seed means the same on every device
    cpu_random = torch.Generator().manual_seed(fit.seed)
    arrays = {
        name: array.to(device) for name, array in _initial_weights(torch, cpu_random, len(learns), data, fit).items()
    }
    average = {name: array.clone() for name, array in arrays.items()}
    head = _class_head(torch, cpu_random, len(learns), data, fit)
    network_parameters = [array.requires_grad_() for array in arrays.values()]
    parameters = network_parameters + [array.requires_grad_() for array in head]
    optimizer = torch.optim.AdamW(
        parameters, lr=fit.rate, weight_decay=fit.decay, betas=(0.9, 0.98), fused=device == "cuda"
    )
    batch = min(fit.batch, learns.shape[1])
    steps = learns.shape[1] // batch
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, fit.rate, total_steps=fit.epochs * steps + 1, pct_start=_WARM_UP
    )
    is_training = torch.tensor(learns, dtype=torch.float32, device=device)

    def descend() -> None:
        done, reported = 0, time.monotonic()
        for epoch in range(fit.epochs):
            order = torch.randperm(learns.shape[1], generator=cpu_random).to(device)
            for step in range(steps):
                loss = _loss(torch, arrays, data, order[step * batch : (step + 1) * batch], is_training, fit, head)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                # the norm is over all networks: its limit grows with their number, and each may step as far as alone
                torch.nn.utils.clip_grad_norm_(parameters, _LARGEST_STEP * len(learns) ** 0.5)
                optimizer.step()
                schedule.step()
                done += 1
                # a short average at first, so that the random weights of the start are forgotten
                decay = min(fit.average, (1 + done) / (10 + done))
                torch._foreach_lerp_(
                    list(average.values()), [array.detach() for array in network_parameters], 1 - decay
                )
            if time.monotonic() - reported > _REPORT_S:
                reported = time.monotonic()
                mean_loss = float(loss.detach()) / len(learns)
                log(f"{len(learns)} networks, epoch {epoch + 1} of {fit.epochs}, loss {mean_loss:.3f}")

    with torch.random.fork_rng():  # dropout draws from the generator of the process, which is given back as it was
        torch.manual_seed(fit.seed)
        descend()
    return FittedNetworks(average, data)


def _initial_weights(torch: Any, random: Any, networks: int, data: _Data, fit: NetworkFit) -> dict[str, Any]:
    """Random weights of all networks."""

    def normal(*shape: int, scale: float) -> Any:
        return torch.randn(networks, *shape, generator=random) * scale

    numbers, width = data.numbers.shape[1], fit.width
    fan = numbers + fit.embedding
    arrays = {
        "embedding": normal(_CODES, fit.embedding, scale=0.3),
        "enter": normal(numbers, width, scale=fan**-0.5),
        "enter_code": normal(fit.embedding, width, scale=fan**-0.5),
        "enter_bias": torch.zeros(networks, 1, width),
        "last_scale": torch.ones(networks, 1, width),
        "leave": normal(width, len(_FIRST_BIASES), scale=0.1 * width**-0.5),
        "leave_bias": torch.tensor(_FIRST_BIASES).repeat(networks, 1, 1),
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


def _class_head(torch: Any, random: Any, networks: int, data: _Data, fit: NetworkFit) -> list[Any]:
    """Random weights of the head for kernel classes; none where no class is known."""
    if not data.kernels:
        return []
    weights = torch.randn(networks, fit.width, data.kernels, generator=random) * 0.3 * fit.width**-0.5
    return [weights.to(data.device), torch.zeros(networks, 1, data.kernels, device=data.device)]


def _hidden(torch: Any, arrays: dict[str, Any], data: _Data | _Units, rows: Any, fit: NetworkFit | None = None) -> Any:
    """The last hidden layer of every network for some rows; with ``fit`` while fitting.

    While fitting on a GPU, the blocks compute in bf16: most of the time goes into moving activations. The first layer
    stays in fp32, because bf16 would round the sizes of tensors by half a percent.
    """
    networks, functional = len(arrays["embedding"]), torch.nn.functional
    numbers = data.numbers[rows].expand(networks, -1, -1)
    state = torch.baddbmm(arrays["enter_bias"], numbers, arrays["enter"])
    state = torch.baddbmm(state, arrays["embedding"][:, data.codes[rows]], arrays["enter_code"])
    if fit is None:
        state = plain_blocks(state, weights_of(arrays), torch.float32, 0.0)
    else:
        in_bf16 = data.device == "cuda" if fit.bf16 is None else fit.bf16
        low = torch.bfloat16 if in_bf16 else torch.float32
        state = blocks_for(data.device)(state, weights_of(arrays), low, fit.dropout)
    normed = functional.rms_norm(state, state.shape[-1:], eps=1e-6)
    return functional.silu(normed * arrays["last_scale"])


def _times_and_power(
    torch: Any, arrays: dict[str, Any], data: _Data | _Units, rows: Any, hidden: Any = None
) -> tuple[Any, Any, Any]:
    """Time, power (None where none was measured) and log(kernel time / bound) of some rows."""
    if hidden is None:
        hidden = _hidden(torch, arrays, data, rows)
    outputs = torch.baddbmm(arrays["leave_bias"], hidden, arrays["leave"])
    kernel_us = torch.exp(outputs[:, :, 0].clamp(*KERNEL_LIMITS)) * data.bound_us[rows]
    # softplus: a gap is never negative
    gap_us = torch.nn.functional.softplus(outputs[:, :, 1]) * data.launches[rows]
    power_w = data.most_w * torch.sigmoid(outputs[:, :, 2]) if data.most_w is not None else None
    return kernel_us + gap_us, power_w, outputs[:, :, 0]


def _loss(
    torch: Any, arrays: dict[str, Any], data: _Data, samples: Any, is_training: Any, fit: NetworkFit, head: list[Any]
) -> Any:
    """The loss of all networks on some samples; a network's own loss counts only the samples that it may learn from."""

    def huber(predicted: Any, truth: Any, weight: Any, most: float) -> Any:
        error = (
            torch.nn.functional.huber_loss(predicted, truth.expand_as(predicted), reduction="none", delta=most) / most
        )
        return (error * weight).sum(dim=1) / weight.sum(dim=1).clamp_min(1.0)

    def sums(values: Any) -> Any:
        totals = torch.zeros(len(values), len(samples), device=data.device)
        return totals.index_add(1, owner, values * data.counts[rows]).clamp_min(1e-3)

    rows, owner = data.rows_of(samples)
    is_training = is_training[:, samples]
    hidden = _hidden(torch, arrays, data, rows, fit)
    time_us, power_w, log_kernel_ratio = _times_and_power(torch, arrays, data, rows, hidden)
    unit = huber(log_kernel_ratio, data.log_ratio[rows], is_training[:, owner] * data.weight[rows], _UNIT_ERROR)
    total_us = sums(time_us)
    workload_loss = huber(
        torch.log(total_us), data.log_latency[samples], is_training * data.is_replayed[samples], _WHOLE_ERROR
    )
    # each term is a mean over what is known, so that weights do not depend on how much was traced
    loss = unit + fit.whole * workload_loss
    if power_w is not None:
        # detached: power must not change the predicted times
        log_power = torch.log(sums(time_us.detach() * power_w) / total_us.detach())
        weight = is_training * data.metered[samples]
        loss = loss + fit.power * huber(log_power, data.log_power[samples], weight, _WHOLE_ERROR)
    if head:
        # a random part of the rows: logits for all rows and all networks would not fit into memory
        chosen = torch.randint(len(rows), (min(_CLASSED_ROWS, len(rows)),), device=data.device)
        classes = data.classes[rows[chosen]]
        logits = torch.baddbmm(head[1], hidden[:, chosen], head[0]).flatten(0, 1)
        error = torch.nn.functional.cross_entropy(
            logits, classes.clamp_min(0).repeat(len(is_training)), reduction="none"
        ).view(len(is_training), -1)
        weight = is_training[:, owner[chosen]] * (classes >= 0)
        loss = loss + fit.kernel * (error * weight).sum(dim=1) / weight.sum(dim=1).clamp_min(1.0)
    return loss.sum()
