"""Lab: distil: fit one small network to what the members of several networks say together.

Idea. The mean of several networks is better than each, and as slow as all of them. A teacher can be asked about any
unit, so one network learns its answers (G. Hinton, O. Vinyals, J. Dean, Distilling the Knowledge in a Neural Network,
2015; C. Buciluǎ, R. Caruana, A. Niculescu-Mizil, Model Compression, KDD 2006). The student has the inputs of the
newest teacher. Its outputs are the mean of the teachers' logarithms of time over bound, the mean power, and how far
the members of the newest teacher are apart, which is what the trees for intervals were fitted to.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from foretell.features import COLUMNS
from foretell.features.encoded import encode
from foretell.features.reuse import MOVED_IN_ALL
from foretell.predictors.unit.network import CLIP_AT, KERNEL_LIMITS, LEAST_SPREAD, UnitNetwork, weight_names
from lab.distil.rows import Rows

_MOVED = COLUMNS.index(MOVED_IN_ALL)
_CODES = 600
_LONGEST_US = 2000.0  # beyond this, a longer unit weighs no more
_ERRORS = (0.02, 0.02, 0.3)  # Huber loss of time, power and the logarithm of the spread: errors above are linear
_WEIGHTS = (1.0, 0.3, 0.02)
_CHUNK = 65_536
_REPORT_S = 60.0

Log = Callable[[str], None]
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Answers:
    """What a teacher says of each row."""

    log_ratio: Values
    power_w: Values
    spread: Values

    def save(self, file: Path) -> None:
        """Write them."""
        np.savez(file, allow_pickle=False, **{name: values.astype(np.float32) for name, values in vars(self).items()})

    @classmethod
    def load(cls, file: Path) -> "Answers":
        """Read what `save` wrote."""
        with np.load(file, allow_pickle=False) as arrays:
            return cls(**{name: arrays[name].astype(np.float64) for name in arrays.files})


def ask(rows: Rows, newest: UnitNetwork, older: Sequence[UnitNetwork]) -> Answers:
    """The answers of the teachers; each fit counts alike.

    Older networks learned the bytes of a whole run before these were rounded, so they read them as they are.
    """
    parts = []
    for start in range(0, len(rows.features), _CHUNK):
        part = slice(start, start + _CHUNK)
        features, bound_us = rows.features[part], rows.bound_us[part]
        told = [newest.predict(encode(features), bound_us)]
        raw = features.copy()
        raw[:, _MOVED] = rows.moved[part]
        told += [network.predict(encode(raw), bound_us) for network in older]
        power_w = np.mean([np.asarray(one.power_w) for one in told], axis=0)
        parts.append((np.mean([one.log_ratio for one in told], axis=0), power_w, told[0].spread))
    return Answers(*(np.concatenate(column) for column in zip(*parts, strict=True)))


@dataclass(frozen=True)
class Fit:
    """The size of a student and how it is fitted; ``minutes`` limits it, the rate follows the share that is spent."""

    width: int = 256
    blocks: int = 3
    minutes: float = 15.0
    epochs: int = 40
    batch: int = 1024
    rate: float = 2e-3
    decay: float = 1e-3
    average: float = 0.998
    warm_up: float = 0.05
    seed: int = 0
    bf16: bool = False  # products in bf16, which processors that have it do two to three times faster


class _Data:
    """Rows as the student reads them, and what it shall say of them."""

    def __init__(self, rows: Rows, answers: Answers, like: UnitNetwork) -> None:
        encoded = [encode(rows.features[start : start + _CHUNK]) for start in range(0, len(rows.features), _CHUNK)]
        self.numbers = torch.from_numpy(np.concatenate([one.numbers for one in encoded]))
        self.codes = torch.from_numpy(np.concatenate([one.operators for one in encoded]).clip(0, _CODES - 1))
        launches = np.concatenate([one.launches for one in encoded]) / rows.bound_us
        self.launches = torch.from_numpy(launches.astype(np.float32))
        self.bins = torch.from_numpy(like.bins.columns)
        self.lows, self.widths = torch.from_numpy(like.bins.lows), torch.from_numpy(like.bins.widths)
        self.middle, self.spread = torch.from_numpy(like.middle), torch.from_numpy(like.spread)
        assert like.most_w is not None
        self.most_w = like.most_w
        targets = [answers.log_ratio, np.log(answers.power_w), np.log(answers.spread + LEAST_SPREAD)]
        self.targets = torch.from_numpy(np.stack(targets, axis=1).astype(np.float32))
        # by the square root of the time: long units decide latencies, short ones are most of the rows
        weight = np.sqrt(np.minimum(np.exp(answers.log_ratio) * rows.bound_us, _LONGEST_US) + 1.0)
        self.weight = torch.from_numpy((weight / weight.mean()).astype(np.float32))

    def inputs(self, rows: Any) -> Any:
        """The scaled numbers of some rows with their bins."""
        numbers = self.numbers[rows]
        through = ((numbers[:, self.bins] - self.lows) / self.widths).clamp(0.0, 1.0)
        return ((torch.cat([numbers, through], dim=1) - self.middle) / self.spread).clamp(-CLIP_AT, CLIP_AT)


def _initial(numbers: int, fit: Fit, embedding: int = 16) -> dict[str, Any]:
    random, width = torch.Generator().manual_seed(fit.seed), fit.width

    def normal(*shape: int, scale: float) -> Any:
        return torch.randn(*shape, generator=random) * scale

    fan = numbers + embedding
    arrays = {
        "embedding": normal(_CODES, embedding, scale=0.3),
        "enter": normal(numbers, width, scale=fan**-0.5),
        "enter_code": normal(embedding, width, scale=fan**-0.5),
        "enter_bias": torch.zeros(1, width),
        "last_scale": torch.ones(1, width),
        "leave": normal(width, 4, scale=0.1 * width**-0.5),
        "leave_bias": torch.tensor([[0.0, -2.0, 0.0, -3.0]]),
    }
    for block in range(fit.blocks):
        arrays |= {
            f"scale{block}": torch.ones(1, width),
            f"up{block}": normal(width, width, scale=(2 / width) ** 0.5),
            f"up_bias{block}": torch.zeros(1, width),
            f"down{block}": normal(width, width, scale=0.5 * width**-0.5),
            f"down_bias{block}": torch.zeros(1, width),
        }
    return {name: arrays[name] for name in weight_names(fit.blocks)}


def started(network: UnitNetwork, member: int) -> UnitNetwork:
    """One member as a student to go on from, with a random output for the spread."""
    fresh = _initial(1, Fit(width=network.weights["leave"].shape[1], blocks=network.blocks))
    weights = {name: array[member : member + 1] for name, array in network.weights.items()}
    for name in ("leave", "leave_bias"):
        weights[name] = np.concatenate([weights[name], fresh[name].numpy()[None, :, 3:]], axis=2)
    return UnitNetwork(weights, network.bins, network.middle, network.spread, network.most_w)


def _told(arrays: dict[str, Any], data: _Data, rows: Any, *, bf16: bool = False) -> Any:
    """What the student says: log(time / bound), log(power), log(spread)."""
    functional = torch.nn.functional
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        state = _state(arrays, data, rows)
    # sums of residuals and outputs are in fp32: bf16 has too few digits for them
    hidden = functional.silu(_normed(state) * arrays["last_scale"])
    outputs = torch.addmm(arrays["leave_bias"], hidden, arrays["leave"])
    gap = functional.softplus(outputs[:, 1]) * data.launches[rows]
    log_ratio = torch.log(torch.exp(outputs[:, 0].clamp(*KERNEL_LIMITS)) + gap)
    log_power = functional.logsigmoid(outputs[:, 2]) + float(np.log(data.most_w))
    return torch.stack([log_ratio, log_power, outputs[:, 3]], dim=1)


def _state(arrays: dict[str, Any], data: _Data, rows: Any) -> Any:
    """What the blocks make of some rows."""
    state = torch.addmm(arrays["enter_bias"], data.inputs(rows), arrays["enter"])
    state = torch.addmm(state, arrays["embedding"][data.codes[rows]], arrays["enter_code"]).float()
    for block in range(sum(name.startswith("up_bias") for name in arrays)):
        up = arrays[f"scale{block}"].mT * arrays[f"up{block}"]
        inner = torch.nn.functional.silu(torch.addmm(arrays[f"up_bias{block}"], _normed(state), up))
        state = state + torch.addmm(arrays[f"down_bias{block}"], inner, arrays[f"down{block}"])
    return state


def _normed(values: Any) -> Any:
    return torch.nn.functional.rms_norm(values, values.shape[-1:], eps=1e-6)


def distil(
    rows: Rows,
    answers: Answers,
    like: UnitNetwork,
    held_out: NDArray[np.bool_],
    fit: Fit,
    start: UnitNetwork | None = None,
    log: Log = lambda _: None,
) -> UnitNetwork:
    """A student of the inputs of ``like``; ``held_out`` rows only judge. With ``start``, it goes on from there."""
    data = _Data(rows, answers, like)
    arrays = _initial(len(like.middle), fit)
    if start is not None:
        arrays = {name: torch.from_numpy(array[0].copy()) for name, array in start.weights.items()}
    average = {name: array.clone() for name, array in arrays.items()}
    parameters = [array.requires_grad_() for array in arrays.values()]
    optimizer = torch.optim.AdamW(parameters, lr=fit.rate, weight_decay=fit.decay, betas=(0.9, 0.98))
    learning = torch.from_numpy(np.flatnonzero(~held_out))
    random = torch.Generator().manual_seed(fit.seed)
    steps, done, started = len(learning) // fit.batch, 0, time.process_time()
    reported, losses = started, list[float]()
    deltas, terms = torch.tensor(_ERRORS), torch.tensor(_WEIGHTS)
    for epoch in range(fit.epochs):
        order = learning[torch.randperm(len(learning), generator=random)]
        for step in range(steps):
            spent = max(done / (fit.epochs * steps), (time.process_time() - started) / (60.0 * fit.minutes))
            if spent >= 1.0:
                break
            rate = min(spent / fit.warm_up, 0.5 * (1.0 + np.cos(np.pi * spent)))
            optimizer.param_groups[0]["lr"] = fit.rate * max(rate, 1e-3)
            chosen = order[step * fit.batch : (step + 1) * fit.batch]
            error = (_told(arrays, data, chosen, bf16=fit.bf16) - data.targets[chosen]).abs()
            huber = torch.where(error < deltas, 0.5 * error * error / deltas, error - 0.5 * deltas)
            loss = ((huber * terms).sum(dim=1) * data.weight[chosen]).mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            done += 1
            losses.append(float(loss.detach()))
            decay = min(fit.average, (1 + done) / (10 + done))
            torch._foreach_lerp_(list(average.values()), [array.detach() for array in parameters], 1 - decay)
            if time.process_time() - reported > _REPORT_S:
                reported = time.process_time()
                away = _distance(average, data, held_out)
                log(
                    f"{(reported - started) / 60:.1f} min, epoch {epoch + 1}, loss {np.mean(losses):.4f}, held out "
                    f"{away[0]:.4f} from the teacher in log(time), {away[1]:.4f} in log(power), {away[2]:.3f} in spread"
                )
                losses.clear()
    log(f"{done} steps of {fit.batch} rows, {done / steps:.1f} epochs")
    log(f"held out: {_distance(average, data, held_out)}")
    weights = {name: array.detach().numpy()[None] for name, array in average.items()}
    seen = np.isin(np.arange(_CODES), data.codes.numpy())
    weights["embedding"] = weights["embedding"] * seen[:, None].astype(np.float32)
    return UnitNetwork(weights, like.bins, like.middle, like.spread, like.most_w)


def _distance(arrays: dict[str, Any], data: _Data, held_out: NDArray[np.bool_]) -> list[float]:
    """The mean distances from the teacher on rows that do not teach."""
    rows = torch.from_numpy(np.flatnonzero(held_out)[:: max(int(held_out.sum()) // 20_000, 1)])
    with torch.no_grad():
        return (_told(arrays, data, rows) - data.targets[rows]).abs().mean(dim=0).tolist()  # type: ignore[no-any-return]
