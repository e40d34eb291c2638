"""Lab: the training loop of graph networks: best weights kept, a checkpoint after each epoch, early stopping.

Every epoch has a seed of its own, and learning rate and stopping follow from the epochs so far. So a run that was
killed continues exactly as if nothing had happened. Where seconds are limited, the result depends on the speed of the
machine.
"""

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretell.errors import DataError
from lab.papers.graph_networks.recipes import Recipe
from lab.papers.graph_networks.tensors import Tensors, torch

Record = dict[str, float]
Progress = Callable[[int, Record], None]
_PLATEAU = 10  # stale epochs after which the rate is halved
_HOPELESS = 5  # epochs without any finite error, after which none will follow


class NoFiniteError(DataError):
    """A fit whose errors are not finite from the start."""


@dataclass(frozen=True)
class Loop:
    """How long, how fast and from which seed to train; ``identity`` says which run a checkpoint belongs to.

    With ``seconds``, no epoch begins that would end later, except the first; each epoch then records the seconds so
    far. A checkpoint is written after the first epoch that ends ``save_every_s`` after the last one, where ``progress``
    raises InterruptedError, and at the end.
    """

    recipe: Recipe
    epochs: int
    rate: float
    seed: int
    device: str
    identity: str
    seconds: float | None = None
    save_every_s: float = 0.0

    def run(
        self,
        weights: Tensors,
        train: Callable[[int, Any], Record],
        evaluate: Callable[[], Record],
        progress: Progress,
        checkpoint: Path | None,
    ) -> tuple[Tensors, tuple[Record, ...]]:
        """The weights of the epoch with the lowest ``score``, and the records of all epochs.

        ``train`` runs an epoch with an optimizer and returns its ``loss``; ``evaluate`` returns at least a ``score``.
        """
        learned = [tensor for tensor in weights.values() if tensor.requires_grad]
        kind = torch.optim.AdamW if self.recipe.weight_decay else torch.optim.Adam
        optimizer = self._optimizer(kind, learned)
        best, history, written = _copy(weights), [], time.monotonic()
        saved = self._read(checkpoint)
        if saved is not None:
            best, history = saved["best"], saved["history"]
            optimizer.load_state_dict(saved["optimizer"])
            _fill(weights, saved["weights"])
        with _isolated_random(self.device):
            while self._continues(history):
                epoch, began = len(history), time.monotonic()
                # a seed for each epoch: a continued run draws the same numbers
                torch.manual_seed(self.seed * 1_000_003 + epoch)
                _set_rate(optimizer, rate_at(self.recipe.schedule, self.rate, history, self.epochs, self.seconds))
                record = train(epoch, optimizer)
                with torch.no_grad():
                    record |= evaluate()
                if self.seconds is not None:
                    record["seconds"] = _seconds(history) + time.monotonic() - began
                history.append(record)
                if len(history) == _HOPELESS:
                    self._check_hope(history, checkpoint)
                if stale_epochs(history) == 0:
                    best = _copy(weights)
                if time.monotonic() - written >= self.save_every_s or not self._continues(history):
                    self._write(checkpoint, weights, optimizer, best, history)
                    written = time.monotonic()
                try:
                    progress(epoch, record)
                except InterruptedError:
                    self._write(checkpoint, weights, optimizer, best, history)
                    raise
        self._check_hope(history, checkpoint)
        return best, tuple(history)

    def _check_hope(self, history: Sequence[Record], checkpoint: Path | None) -> None:
        """Without any finite error, delete the checkpoint: a fit in another way must not go on from it."""
        if history and not math.isfinite(min(_scores(history))):
            if checkpoint is not None:
                checkpoint.unlink(missing_ok=True)
            raise NoFiniteError(
                f"None of {len(history)} epochs gave a finite error, and the loss of the last was "
                f"{history[-1].get('loss', math.nan):g}: fit with a rate below {self.rate:g}."
            )

    def _optimizer(self, kind: Any, learned: Sequence[Any]) -> Any:
        """Adam; on a GPU in a form that can be captured: rate and state are tensors there from the start."""
        if not self.device.startswith("cuda"):
            return kind(learned, lr=self.rate, weight_decay=self.recipe.weight_decay)
        rate = torch.zeros((), device=self.device)
        optimizer = kind(learned, lr=rate, weight_decay=self.recipe.weight_decay, fused=True, capturable=True)
        for tensor in learned:
            tensor.grad = torch.zeros_like(tensor)
        # a step of rate 0 with gradients of 0 makes the state and changes nothing else
        optimizer.step()
        for state in optimizer.state.values():
            state["step"].zero_()
        return optimizer

    def _continues(self, history: Sequence[Record]) -> bool:
        if len(history) >= self.epochs or stale_epochs(history) >= self.recipe.patience:
            return False
        if self.seconds is None or not history:
            return True
        # assume that the next epoch takes as long as the mean of those so far
        return _seconds(history) * (1 + 1 / len(history)) <= self.seconds

    def _read(self, checkpoint: Path | None) -> dict[str, Any] | None:
        if checkpoint is None or not checkpoint.exists():
            return None
        try:
            state: dict[str, Any] = torch.load(checkpoint, map_location=self.device, weights_only=True)
        except Exception as error:
            raise DataError(f"Cannot read the checkpoint {checkpoint}: delete it to start again.") from error
        if state.get("identity") != self.identity:
            raise DataError(f"The checkpoint {checkpoint} belongs to another run: delete it, or name another file.")
        return state

    def _write(
        self, checkpoint: Path | None, weights: Tensors, optimizer: Any, best: Tensors, history: Sequence[Record]
    ) -> None:
        if checkpoint is None:
            return
        state = {"identity": self.identity, "weights": _copy(weights), "optimizer": optimizer.state_dict()}
        partial = checkpoint.with_name(f".{checkpoint.name}.part")
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        torch.save({**state, "best": best, "history": list(history)}, partial)
        # atomic: a kill while writing leaves the old checkpoint
        os.replace(partial, checkpoint)


def rate_at(schedule: str, rate: float, history: Sequence[Record], epochs: int, seconds: float | None = None) -> float:
    """The learning rate of the next epoch; a cosine ends with the epochs or with the seconds, whichever is first.

    >>> rate_at("cosine", 1.0, [{}] * 5, 10), rate_at("plateau", 1.0, [{"score": 1.0}] * 12, 100)
    (0.5, 0.5)
    >>> rate_at("cosine", 1.0, [{"seconds": 30.0}], 10, seconds=60.0)
    0.5
    """
    if schedule == "cosine":
        done = len(history) / max(epochs, 1)
        if seconds is not None:
            done = min(max(done, _seconds(history) / seconds), 1.0)
        return rate * (1 + math.cos(math.pi * done)) / 2
    if schedule == "plateau":
        best, stale = math.inf, 0
        for score in _scores(history):
            stale = 0 if score < best else stale + 1
            best = min(best, score)
            # as ReduceLROnPlateau, but computed from the history, so that a continued run agrees
            if stale > _PLATEAU:
                rate, stale = rate / 2, 0
    return rate


def _set_rate(optimizer: Any, rate: float) -> None:
    for group in optimizer.param_groups:
        if torch.is_tensor(group["lr"]):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def stale_epochs(history: Sequence[Record]) -> int:
    """Epochs since the best one."""
    scores = _scores(history)
    return len(scores) - 1 - scores.index(min(scores)) if scores else 0


def improvement(history: Sequence[Record], share: float = 0.1) -> float:
    """By which part of itself the lowest score fell in the last ``share`` of the epochs: converged if it is small.

    >>> improvement([{"score": 0.2}] * 9 + [{"score": 0.19}])
    0.05
    """
    scores = _scores(history)
    before = scores[: len(scores) - max(round(share * len(scores)), 1)]
    return round(1 - min(scores) / min(before), 6) if before else math.nan


def best_record(history: Sequence[Record]) -> Record:
    """The record of the best epoch; empty where there was none."""
    return history[len(history) - 1 - stale_epochs(history)] if history else {}


def _seconds(history: Sequence[Record]) -> float:
    return history[-1].get("seconds", 0.0) if history else 0.0


def _scores(history: Sequence[Record]) -> list[float]:
    return [r["score"] if math.isfinite(r["score"]) else math.inf for r in history]


def _copy(weights: Tensors) -> Tensors:
    return {name: tensor.detach().clone() for name, tensor in weights.items()}


def _fill(weights: Tensors, saved: Tensors) -> None:
    with torch.no_grad():
        for name, tensor in weights.items():
            tensor.copy_(saved[name])


@contextmanager
def _isolated_random(device: str) -> Iterator[None]:
    """Leave the global random state of torch unchanged."""
    with torch.random.fork_rng([torch.cuda.current_device()] if device.startswith("cuda") else []):
        yield
