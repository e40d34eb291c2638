"""Advisors: improvement: what a change of a model or of its place gains, how sure that is, and in which order to try.

Idea: a change is made, and the changed workload is predicted by the same predictor. Its gain is the ratio of the two
predictions, so 1.5 means half as fast again, half as small again or half as cheap again.

The interval of a gain is not that of a latency. Both predictions come from one predictor, and much of their error is
the same: a network that is predicted 10 % too slow in fp32 is often predicted too slow in fp16, too. With half-widths w
and v of both intervals (in logarithms) and the correlation r of their errors, the half-width of the ratio is
√(w² + v² − 2 r w v). The correlations were measured on pairs of workloads that no predictor had seen
(docs/lab/0049-improve.md); units of work that a change does not touch have one and the same error, and cancel.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from foretell.readable import Readable, spell
from foretell.records import Estimate, OperatorShare, Prediction

Objective = Literal["latency", "throughput", "memory", "usd"]
OBJECTIVES: tuple[Objective, ...] = ("latency", "throughput", "memory", "usd")
Accuracy = Literal["none", "numerics", "retraining"]
ACCURACIES: tuple[Accuracy, ...] = ("none", "numerics", "retraining")  # what a change costs, least first
# the correlation of the errors of both predictions, by kind of change; 0 where nothing was measured
CORRELATIONS: Mapping[str, float] = {
    "precision": 0.4, "batch": 0.4, "layout": 0.25, "graph": 0.4, "compiler": 0.4, "optimizer": 0.4,
}  # fmt: skip
LEAST_GAIN = 1.01  # below it a change is not worth a sentence
_SHOWN = 5
_NAMED = 2  # operators in a sentence
_WORTH_NAMING = 0.1  # of the difference


@dataclass(frozen=True, slots=True)
class Change:
    """A change, what it costs in accuracy, how to make it, and what it gains by objective: before over after."""

    name: str
    kind: str
    accuracy: Accuracy
    how: str
    why: str
    after: Prediction
    gains: Mapping[str, Estimate]
    reason: str = ""  # why it was rejected

    def is_sure(self, objective: Objective) -> bool:
        """Whether the whole interval of the gain lies above 1."""
        return self.gains[objective].low > 1.0

    def to_dict(self, objective: Objective) -> dict[str, Any]:
        """The change as JSON has it."""
        head: dict[str, Any] = {"change": self.name, "kind": self.kind, "accuracy": self.accuracy, "how": self.how}
        if objective in self.gains:
            head |= {"gain": self.gains[objective].to_dict(), "sure": self.is_sure(objective)}
        head["gains"] = {name: gain.to_dict() for name, gain in self.gains.items()}
        metrics = ("latency_ms", "host_latency_ms", "throughput_per_s", "memory_mib")
        head["after"] = {name: value.to_dict() for name in metrics if (value := getattr(self.after, name)) is not None}
        if self.why:
            head["why"] = self.why
        if self.reason:
            head["reason"] = self.reason
        return head


@dataclass(frozen=True, repr=False)
class Improvement(Readable):
    """The changes that help, best first; those that do not; and what the compatible ones gain together."""

    before: Prediction
    objective: Objective
    changes: tuple[Change, ...]
    rejected: tuple[Change, ...]
    together: Change | None = None
    notes: tuple[str, ...] = ()

    def heading(self) -> str:
        """The answer: the best change and what it gains."""
        where = f"{self.before.model} on {self.before.device}"
        if not self.changes:
            return f"Improvement: {where}: no change was found that helps {self.objective}"
        best = self.changes[0]
        return f"Improvement: {where}: {best.name}, {gain_text(best.gains[self.objective], self.objective)}"

    def lines(self) -> Iterator[tuple[str, str]]:
        """The five best changes, and all together."""
        for change in self.changes[:_SHOWN]:
            yield change.name, f"{spell(change.gains[self.objective])} × ({change.accuracy})"
        if self.together is not None:
            yield self.together.name, f"{spell(self.together.gains[self.objective])} ×"

    def rows(self) -> list[dict[str, Any]]:
        """One row for each change, best first; then the rejected ones."""
        return [
            {
                "change": change.name, "accuracy": change.accuracy, "accepted": not change.reason,
                "gain": change.gains[self.objective].value if self.objective in change.gains else None,
                "how": change.how, "why": change.why or change.reason,
            }
            for change in (*self.changes, *self.rejected)
        ]  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """The object that ``foretell improve --json`` prints."""
        head = ("model", "device", "slice", "runtime", "mode", "batch_size", "dtype")
        result: dict[str, Any] = {name: getattr(self.before, name) for name in head}
        result["by"] = self.objective
        metrics = ("latency_ms", "host_latency_ms", "throughput_per_s", "memory_mib")
        before = self.before
        result["before"] = {name: value.to_dict() for name in metrics if (value := getattr(before, name)) is not None}
        result["changes"] = [change.to_dict(self.objective) for change in self.changes]
        if self.together is not None:
            result["together"] = self.together.to_dict(self.objective)
        result["rejected"] = [change.to_dict(self.objective) for change in self.rejected]
        return result | {
            "extrapolated": before.extrapolated, "notes": list(self.notes), "warnings": list(before.warnings),
        }  # fmt: skip


def gain_text(gain: Estimate, objective: Objective) -> str:
    """A gain in words.

    >>> gain_text(Estimate(2.4, 2.1, 2.7), "latency")
    '2.4 times as fast (2.1 – 2.7)'
    """
    words = {
        "latency": "times as fast", "throughput": "times as many items a second", "memory": "times less memory",
        "usd": "times cheaper",
    }  # fmt: skip
    return f"{gain.value:.3g} {words[objective]} ({gain.low:.3g} – {gain.high:.3g})"


def gain_of(before: Estimate, after: Estimate, correlation: float) -> Estimate:
    """The ratio of two estimates whose errors are correlated.

    >>> one = Estimate(2.0, 1.6, 2.5)
    >>> gain_of(one, one.scaled(0.5), 0.0).low < gain_of(one, one.scaled(0.5), 0.8).low < 2.0
    True
    """
    value = before.value / after.value
    wide, other = (math.log(end.high / end.low) / 2 for end in (before, after))
    half = math.sqrt(max(wide**2 + other**2 - 2 * correlation * wide * other, 0.0))
    return Estimate(value, value * math.exp(-half), value * math.exp(half))


def rank(changes: Sequence[Change], objective: Objective) -> tuple[tuple[Change, ...], tuple[Change, ...]]:
    """The changes that help, by what they gain at least (the low end of the interval), and those that are rejected.

    By the low end, because a change is work: a sure gain of 1.5 is tried before one between 0.9 and 2.5. Another GPU
    comes last unless dollars count: whoever asks how to be faster asks about the model here.
    """
    helpful = [one for one in changes if not one.reason and one.gains[objective].value >= LEAST_GAIN]
    rest = [one for one in changes if one not in helpful]

    def order(change: Change) -> tuple[bool, float]:
        return change.kind == "device" and objective != "usd", -change.gains[objective].low

    def loss(change: Change) -> float:
        return -change.gains[objective].value if objective in change.gains else math.inf

    return tuple(sorted(helpful, key=order)), tuple(sorted(rest, key=loss))


def shared_share(before: Mapping[bytes, float], after: Mapping[bytes, float]) -> float:
    """The share of the time that equal units of work take in both workloads; units have keys that say what they do."""
    common = sum(min(time, after[unit]) for unit, time in before.items() if unit in after)
    return common / math.sqrt(sum(before.values()) * sum(after.values()))


def explain_change(before: Prediction, after: Prediction) -> str:
    """One sentence: which operators take how much less time, and which take more."""
    old, new = _times(before), _times(after)
    per_item = before.batch_size != after.batch_size
    scale = {name: 1.0 / one.batch_size if per_item else 1.0 for name, one in (("old", before), ("new", after))}
    old = {name: time * scale["old"] for name, time in old.items()}
    new = {name: time * scale["new"] for name, time in new.items()}
    saved = {name: old.get(name, 0.0) - new.get(name, 0.0) for name in {**old, **new}}
    total = sum(abs(difference) for difference in saved.values())
    named = sorted((name for name in saved if abs(saved[name]) >= _WORTH_NAMING * total), key=lambda name: -saved[name])
    falling = [name for name in named if saved[name] > 0][:_NAMED]
    rising = [name for name in reversed(named) if saved[name] < 0][:1]
    parts = [f"{name} takes {_ms(new.get(name, 0.0))} instead of {_ms(old[name])} ms" for name in falling]
    parts += [f"{name} {_ms(new[name])} instead of {_ms(old.get(name, 0.0))} ms" for name in rising]
    if not parts:
        return ""
    bound = next((share.bound for share in before.breakdown if falling and share.operator == falling[0]), "")
    limited = f"; {falling[0]} was bound by {_BOUNDS[bound]}" if bound in _BOUNDS else ""
    return ", ".join(parts) + (" for an item" if per_item else "") + limited


_BOUNDS = {"compute": "arithmetic", "memory": "memory bandwidth", "launch": "launches"}


def _times(prediction: Prediction) -> dict[str, float]:
    shares: tuple[OperatorShare, ...] = prediction.breakdown
    return {share.operator: share.latency_ms for share in shares}


def _ms(time_ms: float) -> str:
    return f"{time_ms:.3g}"
