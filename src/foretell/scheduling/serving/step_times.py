"""Scheduling: serving: step times that are slow to predict, asked about once."""

import math

from foretell.errors import InputError
from foretell.scheduling.serving.server import StepTime

_MOST_EXACT = 64  # counts up to this are not rounded


def remembered(step_time: StepTime, resolution: float = 0.02) -> StepTime:
    """The same step times, asked about at rounded arguments, each once.

    Counts and contexts are rounded to steps of ``resolution``, so that a simulation of a million requests asks about a
    few thousand steps. The error is at most half of that share, of what grows with the argument.

    >>> calls = []
    >>> def slow(*step): calls.append(step); return 1e-3 * step[2]
    >>> fast = remembered(slow)
    >>> [fast(0, 0.0, 8, context) for context in (10_000.0, 10_001.0, 10_002.0)], len(calls)
    ([0.008, 0.008, 0.008], 1)
    """
    if not 0 < resolution <= 0.5:
        raise InputError(f"Got a resolution of {resolution}; it must be above 0 and at most 0.5.")
    known: dict[tuple[int, int, int, int], float] = {}
    log_step = math.log1p(resolution)

    def bin_of(value: float) -> int:
        if value <= _MOST_EXACT:
            return round(value)
        return _MOST_EXACT + round(math.log(value / _MOST_EXACT) / log_step)

    def value_of(number: int) -> float:
        return float(number) if number <= _MOST_EXACT else _MOST_EXACT * math.exp((number - _MOST_EXACT) * log_step)

    def step(prefill_tokens: int, prefill_context: float, decode_requests: int, decode_context: float) -> float:
        key = (bin_of(prefill_tokens), bin_of(prefill_context), bin_of(decode_requests), bin_of(decode_context))
        seconds = known.get(key)
        if seconds is None:
            tokens, before, requests, context = map(value_of, key)
            seconds = known[key] = step_time(round(tokens), before, round(requests), context)
        return seconds

    return step
