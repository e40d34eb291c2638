"""Lab: one loop for every stage of chapter 7: Adam, a rate that falls late, a checkpoint to go on from, and a curve."""

import io
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from foretell.files import write_whole
from foretell.optional import require
from lab.papers.graph_llm.scores import Record

torch = require("torch", extra="torch", purpose="Fitting a language model")

Draw = np.random.Generator
_WARM_UP, _FALL = 0.05, 1 / 3
_FIRST_STEPS = 5  # that rise where no number of steps is given
_LARGEST_GRADIENT = 1.0
_SAVE_EVERY_S = 60.0


@dataclass(frozen=True)
class Schedule:
    """How long and how fast a stage is fitted; ``look_every`` steps its validation is computed."""

    steps: int
    rate: float
    encoder_rate: float
    look_every: int
    seed: int = 0
    falls: bool = True  # the rate at the end; otherwise every step of the curve is an end of its own


@dataclass(frozen=True)
class Fitted:
    """Whether all steps were made, and the curve."""

    is_done: bool
    curve: list[Record]
    spent_s: float


def fit(
    parts: Sequence[tuple[Any, float]],
    state: Any,
    loss_of: Callable[[Draw], Any],
    look: Callable[[], Record],
    schedule: Schedule,
    checkpoint: Path | None = None,
    end_s: float = math.inf,
) -> Fitted:
    """Make the steps that are left until a moment of the clock (time.monotonic).

    ``parts`` are lists of weights with their learning rates; ``state`` has `learned` and `restore`. Each step draws by
    its own number, so that a fit that was stopped goes on as it would have.
    """
    optimizer = torch.optim.Adam([{"params": list(some), "lr": rate, "own": rate} for some, rate in parts])
    step, curve, spent, recent = 0, [], 0.0, []
    if checkpoint is not None and checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        state.restore(saved["learned"])
        optimizer.load_state_dict(saved["optimizer"])
        step, curve, spent = saved["step"], saved["curve"], saved["spent_s"]
    began = saved_at = time.process_time()
    while step < schedule.steps and time.monotonic() < end_s:
        for group in optimizer.param_groups:
            group["lr"] = group["own"] * pace(step, schedule.steps, schedule.falls)
        loss = loss_of(np.random.default_rng((schedule.seed, step)))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(
            [w for some in optimizer.param_groups for w in some["params"]], _LARGEST_GRADIENT
        )
        optimizer.step()
        recent.append(float(loss.detach()))
        step += 1
        if step % schedule.look_every == 0 or step == schedule.steps:
            curve.append({"step": float(step), "loss": float(np.mean(recent)), **look()})
            recent = []
        if checkpoint is not None and time.process_time() - saved_at > _SAVE_EVERY_S:
            _save(checkpoint, state, optimizer, step, curve, spent + time.process_time() - began)
            saved_at = time.process_time()
    spent += time.process_time() - began
    if checkpoint is not None and step < schedule.steps:
        _save(checkpoint, state, optimizer, step, curve, spent)
    return Fitted(step >= schedule.steps, curve, spent)


def pace(step: int, steps: int, falls: bool = True) -> float:
    """The share of the learning rate: a short rise, all of it, and a fall to nothing in the last third.

    A fit that was stopped before the fall may go on with other steps: it is what it would have been.

    >>> [round(pace(step, 100), 2) for step in (0, 4, 65, 82, 99)]
    [0.2, 1.0, 1.0, 0.55, 0.03]
    >>> pace(99, 100, falls=False)
    1.0
    """
    if not falls:
        return min((step + 1) / _FIRST_STEPS, 1.0)
    rise = max(round(_WARM_UP * steps), 1)
    fall = max(round(_FALL * steps), 1)
    return min((step + 1) / rise, 1.0, (steps - step) / fall)


def last_tenth(curve: Sequence[Record], name: str) -> float:
    """By which part of itself the lowest value fell in the last tenth of a curve; converged if below 0.02."""
    values = [record[name] for record in curve if name in record]
    before = values[: len(values) - max(round(0.1 * len(values)), 1)]
    return round(1 - min(values) / min(before), 4) if before else math.nan


def write_tensors(file: Path, content: Any) -> None:
    """Tensors, numbers and names as one file, whole or not at all."""
    data = io.BytesIO()
    torch.save(content, data)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, data.getvalue())


def _save(file: Path, state: Any, optimizer: Any, step: int, curve: list[Record], spent_s: float) -> None:
    write_tensors(
        file,
        {
            "learned": state.learned(),
            "optimizer": optimizer.state_dict(),
            "step": step,
            "curve": curve,
            "spent_s": spent_s,
        },
    )
