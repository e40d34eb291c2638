"""Lab: distil: fit small networks to what the members of several networks say together.

Idea. The mean of several networks is better than each, and as slow as all of them. A teacher can be asked about any
unit, so one network learns its answers (G. Hinton, O. Vinyals, J. Dean, Distilling the Knowledge in a Neural Network,
2015; C. Buciluǎ, R. Caruana, A. Niculescu-Mizil, Model Compression, KDD 2006). The student has the inputs of the
newest teacher. Its outputs are the mean of the teachers' logarithms of time over bound, the mean power, and how far
the members of the newest teacher are apart, which is what the trees for intervals were fitted to.

Several students are fitted side by side, each to its own teacher and without its own rows: the one that ships, and one
for each fold of architectures, so that trees and intervals are fitted to what a student says of the unseen.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from foretell.predictors.unit.blocks import blocks_for, plain_blocks, weights_of
from foretell.predictors.unit.network import CLIP_AT, KERNEL_LIMITS, LEAST_SPREAD, UnitNetwork, scaled, weight_names
from lab.distil.questions import Questions

_CODES = 600
_LONGEST_US = 2000.0  # beyond this, a longer unit weighs no more
_ERRORS = (0.02, 0.02, 0.3)  # Huber loss of time, power and the logarithm of the spread: errors above are linear
_WEIGHTS = (1.0, 0.3, 0.02)
_CHUNK = 65_536
_RIDGE = 1e-4  # beside mean squares of the last layer's outputs, which are about one

Log = Callable[[str], None]
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Answers:
    """What a teacher says of each row."""

    log_ratio: Values
    power_w: Values
    spread: Values

    @property
    def columns(self) -> tuple[Values, Values, Values]:
        """All of them, in this order."""
        return self.log_ratio, self.power_w, self.spread

    def save(self, file: Path) -> None:
        """Write them."""
        np.savez(file, allow_pickle=False, **{name: values.astype(np.float32) for name, values in vars(self).items()})

    @classmethod
    def load(cls, file: Path) -> "Answers":
        """Read what `save` wrote."""
        with np.load(file, allow_pickle=False) as arrays:
            return cls(**{name: arrays[name].astype(np.float64) for name in arrays.files})


def ask(questions: Questions, networks: Sequence[UnitNetwork]) -> Answers:
    """The answers of several fits, the newest first; each fit counts alike, and the spread is that of the newest."""
    parts = []
    for start in range(0, len(questions), _CHUNK):
        own = questions.of(slice(start, start + _CHUNK))
        told = [network.predict(own.encoded, own.bound_us) for network in networks]
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
    report_s: float = 60.0
    bf16: bool = False  # products of the blocks in bf16: two to three times faster where a processor or GPU has it
    device: str = "cpu"


class _Data:
    """Rows as students read them, and what each shall say; the first axis of targets and weights is the student.

    Numbers stay as they are encoded, and get their bins batch by batch: with them a row is three times as long.
    """

    def __init__(
        self,
        questions: Questions,
        answers: Sequence[Answers],
        like: UnitNetwork,
        learns: NDArray[np.bool_],
        device: str,
    ) -> None:
        self.device = device
        encoded, bound_us = questions.encoded, questions.bound_us
        self.numbers = torch.from_numpy(encoded.numbers).to(device)
        self.codes = torch.from_numpy(encoded.operators.clip(0, _CODES - 1)).to(device)
        self.launches = torch.from_numpy((encoded.launches / bound_us).astype(np.float32)).to(device)
        self.bins = torch.from_numpy(like.bins.columns).to(device)
        self.lows, self.widths, self.middle, self.spread = (
            torch.from_numpy(array).to(device) for array in (like.bins.lows, like.bins.widths, like.middle, like.spread)
        )
        assert like.most_w is not None
        self.most_w = like.most_w
        targets, weights = [], []
        for own, is_learning in zip(answers, learns, strict=True):
            columns = [own.log_ratio, np.log(own.power_w), np.log(own.spread + LEAST_SPREAD)]
            targets.append(torch.from_numpy(np.stack(columns, axis=1).astype(np.float32)))
            # by the square root of the time: long units decide latencies, short ones are most of the rows
            weight = np.sqrt(np.minimum(np.exp(own.log_ratio) * bound_us, _LONGEST_US) + 1.0)
            weights.append(torch.from_numpy((is_learning * weight / weight.mean()).astype(np.float32)))
        self.targets, self.weight = torch.stack(targets).to(device), torch.stack(weights).to(device)

    def inputs(self, rows: Any) -> Any:
        """The scaled numbers of some rows with their bins."""
        numbers = self.numbers[rows]
        through = ((numbers[:, self.bins] - self.lows) / self.widths).clamp(0.0, 1.0)
        return ((torch.cat([numbers, through], dim=1) - self.middle) / self.spread).clamp(-CLIP_AT, CLIP_AT)


def _initial(numbers: int, fit: Fit, students: int = 1, embedding: int = 16) -> dict[str, Any]:
    random, width = torch.Generator().manual_seed(fit.seed), fit.width

    def normal(*shape: int, scale: float) -> Any:
        return torch.randn(students, *shape, generator=random) * scale

    fan = numbers + embedding
    arrays = {
        "embedding": normal(_CODES, embedding, scale=0.3),
        "enter": normal(numbers, width, scale=fan**-0.5),
        "enter_code": normal(embedding, width, scale=fan**-0.5),
        "enter_bias": torch.zeros(students, 1, width),
        "last_scale": torch.ones(students, 1, width),
        "leave": normal(width, 4, scale=0.1 * width**-0.5),
        "leave_bias": torch.tensor([[0.0, -2.0, 0.0, -3.0]]).repeat(students, 1, 1),
    }
    for block in range(fit.blocks):
        arrays |= {
            f"scale{block}": torch.ones(students, 1, width),
            f"up{block}": normal(width, width, scale=(2 / width) ** 0.5),
            f"up_bias{block}": torch.zeros(students, 1, width),
            f"down{block}": normal(width, width, scale=0.5 * width**-0.5),
            f"down_bias{block}": torch.zeros(students, 1, width),
        }
    return {name: arrays[name] for name in weight_names(fit.blocks)}


def started(network: UnitNetwork, member: int) -> UnitNetwork:
    """One member as a student to go on from, with a random output for the spread."""
    fresh = _initial(1, Fit(width=network.weights["leave"].shape[1], blocks=network.blocks))
    weights = {name: array[member : member + 1] for name, array in network.weights.items()}
    for name in ("leave", "leave_bias"):
        weights[name] = np.concatenate([weights[name], fresh[name].numpy()[:, :, 3:]], axis=2)
    return UnitNetwork(weights, network.bins, network.middle, network.spread, network.most_w)


def _told(arrays: dict[str, Any], data: _Data, rows: Any, *, bf16: bool = False) -> Any:
    """What each student says: log(time / bound), log(power), log(spread)."""
    functional, students = torch.nn.functional, len(arrays["embedding"])
    state = torch.baddbmm(arrays["enter_bias"], data.inputs(rows).expand(students, -1, -1), arrays["enter"])
    state = torch.baddbmm(state, arrays["embedding"][:, data.codes[rows]], arrays["enter_code"])
    # sums of residuals and outputs are in fp32: bf16 has too few digits for them
    blocks = blocks_for(data.device) if bf16 else plain_blocks
    state = blocks(state, weights_of(arrays), torch.bfloat16 if bf16 else torch.float32, 0.0)
    normed = functional.rms_norm(state, state.shape[-1:], eps=1e-6)
    outputs = torch.baddbmm(arrays["leave_bias"], functional.silu(normed * arrays["last_scale"]), arrays["leave"])
    gap = functional.softplus(outputs[..., 1]) * data.launches[rows]
    log_ratio = torch.log(torch.exp(outputs[..., 0].clamp(*KERNEL_LIMITS)) + gap)
    log_power = functional.logsigmoid(outputs[..., 2]) + float(np.log(data.most_w))
    return torch.stack([log_ratio, log_power, outputs[..., 3]], dim=-1)


def distil(
    questions: Questions,
    answers: Sequence[Answers],
    like: UnitNetwork,
    learns: NDArray[np.bool_],
    fit: Fit,
    starts: Sequence[UnitNetwork] = (),
    log: Log = lambda _: None,
) -> list[UnitNetwork]:
    """A student for each of the ``answers``, with the inputs of ``like``; it learns from its row of ``learns``.

    Rows that no student learns from only judge, and so do a student's own other rows. With ``starts``, each goes on
    from there.
    """
    data = _Data(questions, answers, like, learns, fit.device)
    torch.backends.cuda.matmul.allow_tf32 = True
    arrays = _initial(len(like.middle), fit, len(answers))
    if starts:
        arrays = {
            name: torch.from_numpy(np.concatenate([own.weights[name] for own in starts])) for name in starts[0].weights
        }
    arrays = {name: array.to(fit.device) for name, array in arrays.items()}
    average = {name: array.clone() for name, array in arrays.items()}
    parameters = [array.requires_grad_() for array in arrays.values()]
    optimizer = torch.optim.AdamW(
        parameters, lr=fit.rate, weight_decay=fit.decay, betas=(0.9, 0.98), fused=fit.device == "cuda"
    )
    learning = torch.from_numpy(np.flatnonzero(learns.any(axis=0))).to(fit.device)
    random = torch.Generator().manual_seed(fit.seed)
    # on a processor other work must not count
    clock = time.monotonic if fit.device == "cuda" else time.process_time
    steps, done, started = len(learning) // fit.batch, 0, clock()
    reported, losses = started, list[Any]()
    deltas, terms = (torch.tensor(values, device=fit.device) for values in (_ERRORS, _WEIGHTS))
    most = len(answers) ** 0.5
    for epoch in range(fit.epochs):
        order = learning[torch.randperm(len(learning), generator=random).to(fit.device)]
        for step in range(steps):
            spent = max(done / (fit.epochs * steps), (clock() - started) / (60.0 * fit.minutes))
            if spent >= 1.0:
                break
            rate = min(spent / fit.warm_up, 0.5 * (1.0 + np.cos(np.pi * spent)))
            optimizer.param_groups[0]["lr"] = fit.rate * max(rate, 1e-3)
            chosen = order[step * fit.batch : (step + 1) * fit.batch]
            error = (_told(arrays, data, chosen, bf16=fit.bf16) - data.targets[:, chosen]).abs()
            huber = torch.where(error < deltas, 0.5 * error * error / deltas, error - 0.5 * deltas)
            loss = ((huber * terms).sum(dim=-1) * data.weight[:, chosen]).mean(dim=1).sum()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            # the norm is over all students: its limit grows with their number, and each may step as far as alone
            torch.nn.utils.clip_grad_norm_(parameters, most)
            optimizer.step()
            done += 1
            losses.append(loss.detach())
            decay = min(fit.average, (1 + done) / (10 + done))
            torch._foreach_lerp_(list(average.values()), [array.detach() for array in parameters], 1 - decay)
            if clock() - reported > fit.report_s:
                reported = clock()
                mean_loss = float(torch.stack(losses).mean()) / len(answers)
                when = f"{(reported - started) / 60:.1f} min, epoch {epoch + 1}"
                log(f"{when}, loss {mean_loss:.4f}, {_away(average, data)}")
                losses.clear()
    log(f"{done} steps of {fit.batch} rows, {done / max(steps, 1):.1f} epochs; {_away(average, data)}")
    seen = np.isin(np.arange(_CODES), data.codes.cpu().numpy())
    weights = {name: array.detach().cpu().numpy() for name, array in average.items()}
    weights["embedding"] = weights["embedding"] * seen[:, None].astype(np.float32)
    return [
        UnitNetwork(
            {name: array[one : one + 1] for name, array in weights.items()},
            like.bins, like.middle, like.spread, like.most_w,
        )
        for one in range(len(answers))
    ]  # fmt: skip


def _away(arrays: dict[str, Any], data: _Data) -> str:
    """The mean distance of each student from its teacher on rows that it does not learn from."""
    found = []
    for one in range(len(data.weight)):
        rows = torch.nonzero(data.weight[one] == 0).ravel()
        rows = rows[:: max(len(rows) // 20_000, 1)]
        with torch.no_grad():
            told = _told({name: array[one : one + 1] for name, array in arrays.items()}, data, rows)
            found.append((told[0] - data.targets[one, rows]).abs().mean(dim=0).tolist())
    times, powers, spreads = (", ".join(f"{value:.4f}" for value in column) for column in zip(*found, strict=True))
    return f"held out: {times} from the teacher in log(time), {powers} in log(power), {spreads} in log(spread)"


def with_spread(student: UnitNetwork, teachers: Sequence[UnitNetwork], questions: Questions) -> UnitNetwork:
    """The student with its output for the spread fitted anew, by least squares on its last layer.

    A student that was asked about measured sizes alone says of sizes beyond them what it says of measured ones, while
    its teachers' members drift apart there. The questions have both.
    """
    spreads = [network.predict(questions.encoded, questions.bound_us).spread for network in teachers]
    target = np.log(np.mean(spreads, axis=0) + LEAST_SPREAD)
    encoded = questions.encoded
    numbers = scaled(student.bins.with_positions(encoded.numbers), student.middle, student.spread)
    hidden = student.hidden(0, numbers, np.minimum(encoded.operators, student.operators - 1)).astype(np.float64)
    design = np.column_stack([hidden, np.ones(len(hidden))])
    normal = design.T @ design
    normal[np.diag_indices(len(normal))] += _RIDGE * len(hidden)
    solved = np.linalg.solve(normal, design.T @ target)
    weights = dict(student.weights)
    for name, values in (("leave", solved[:-1]), ("leave_bias", solved[-1:])):
        weights[name] = weights[name].copy()
        weights[name][0, :, 3] = values
    return UnitNetwork(weights, student.bins, student.middle, student.spread, student.most_w)
