"""Scheduling: serving: what a simulation adds up. It takes the same memory for ten requests and for a million."""

import math
from collections import Counter
from dataclasses import dataclass, field

from foretell.units import ms

_LOG_STEP = math.log(1.005)  # bins half a percent wide
_SHORTEST_S = 1e-6
_PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request must keep to count for the goodput; None is no limit."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None


@dataclass(slots=True)
class Spread:
    """Times as a sum and as bins half a percent wide, from which percentiles are read."""

    count: int = 0
    sum_s: float = 0.0
    bins: Counter[int] = field(default_factory=Counter, repr=False)

    def add(self, seconds: float) -> None:
        """Count one."""
        self.count += 1
        self.sum_s += seconds
        self.bins[-1 if seconds <= _SHORTEST_S else int(math.log(seconds / _SHORTEST_S) / _LOG_STEP)] += 1

    @property
    def mean_s(self) -> float:
        """The mean."""
        return self.sum_s / self.count if self.count else 0.0

    def percentile_s(self, percent: float) -> float:
        """What that share does not exceed, to half a percent."""
        left = percent / 100 * self.count
        for number in sorted(self.bins):
            left -= self.bins[number]
            if left <= 0:
                return 0.0 if number < 0 else _SHORTEST_S * math.exp((number + 0.5) * _LOG_STEP)
        return 0.0

    def to_dict(self) -> dict[str, float]:
        """Mean and percentiles, in milliseconds."""
        return {"mean": ms(self.mean_s)} | {f"p{p}": ms(self.percentile_s(p)) for p in _PERCENTILES}


@dataclass(slots=True)
class ServingTotals:
    """Sums over all requests that ended, and over the steps of all servers.

    ``generated_tokens`` and ``prefilled_tokens`` count what steps did; ``output_tokens`` and ``input_tokens`` what the
    requests asked for. The former two are equal unless tokens were lost. Prefilled are fewer than asked for where a
    prefix was cached, and more where a preempted request is computed again (``recomputed_tokens``). Requests of the
    warm-up count in these, and not in the times, the goodput and ``counted``.
    """

    limits: Limits
    requests: int = 0
    counted: int = 0
    good: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    generated_tokens: int = 0
    prefilled_tokens: int = 0
    cached_tokens: int = 0
    recomputed_tokens: int = 0
    preemptions: int = 0
    steps: int = 0
    stretches: int = 0
    busy_s: float = 0.0
    energy_j: float | None = None
    first_s: float = math.inf
    last_s: float = 0.0
    begin_s: float = math.inf
    counted_output_tokens: int = 0
    in_system_s: float = 0.0
    """The number of requests that wait or run, integrated over time."""
    ttft: Spread = field(default_factory=Spread)
    tpot: Spread = field(default_factory=Spread)
    latency: Spread = field(default_factory=Spread)

    def add(
        self, arrival_s: float, first_s: float, end_s: float, input_tokens: int, output_tokens: int, counts: bool
    ) -> None:
        """Count a request that has ended."""
        self.requests += 1
        self.input_tokens += input_tokens
        self.output_tokens += output_tokens
        self.first_s = min(self.first_s, arrival_s)
        self.last_s = max(self.last_s, end_s)
        if not counts:
            return
        self.counted += 1
        self.counted_output_tokens += output_tokens
        self.begin_s = min(self.begin_s, arrival_s)
        ttft_s = first_s - arrival_s
        tpot_s = (end_s - first_s) / (output_tokens - 1) if output_tokens > 1 else 0.0
        self.ttft.add(ttft_s)
        self.latency.add(end_s - arrival_s)
        if output_tokens > 1:
            self.tpot.add(tpot_s)
        limits = self.limits
        self.good += (limits.ttft_ms is None or ms(ttft_s) <= limits.ttft_ms) and (
            limits.tpot_ms is None or ms(tpot_s) <= limits.tpot_ms
        )

    @property
    def span_s(self) -> float:
        """From the first arrival to the last end."""
        return self.last_s - self.first_s if self.requests else 0.0

    @property
    def counted_span_s(self) -> float:
        """The same without the warm-up."""
        return self.last_s - self.begin_s if self.counted else 0.0

    @property
    def requests_per_s(self) -> float:
        """Ended requests a second, without the warm-up."""
        return self.counted / self.counted_span_s if self.counted_span_s else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens a second, without the warm-up."""
        return self.counted_output_tokens / self.counted_span_s if self.counted_span_s else 0.0

    @property
    def goodput_per_s(self) -> float:
        """Requests a second that keep the limits."""
        return self.good / self.counted_span_s if self.counted_span_s else 0.0

    @property
    def mean_in_system(self) -> float:
        """How many requests wait or run, in the mean over time."""
        return self.in_system_s / self.span_s if self.span_s else 0.0

    def to_dict(self) -> dict[str, object]:
        """The results, for JSON; absent where nothing is known."""
        shown: dict[str, object] = {
            "requests": self.requests,
            "ttft_ms": self.ttft.to_dict(),
            "tpot_ms": self.tpot.to_dict(),
            "latency_ms": self.latency.to_dict(),
            "requests_per_s": self.requests_per_s,
            "tokens_per_s": self.tokens_per_s,
            "goodput_per_s": self.goodput_per_s,
            "good_share": self.good / self.counted if self.counted else 0.0,
            "mean_in_flight": self.mean_in_system,
            "preemptions": self.preemptions,
            "recomputed_tokens": self.recomputed_tokens,
            "cached_tokens": self.cached_tokens,
        }
        if self.energy_j is not None:
            shown["energy_j"] = self.energy_j
            shown["energy_j_per_token"] = self.energy_j / self.generated_tokens if self.generated_tokens else 0.0
        return shown
