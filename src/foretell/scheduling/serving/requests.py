"""Scheduling: serving: requests: their lengths, and when they arrive.

An arrival is (time in seconds, input tokens, output tokens), and comes from an iterator: a million of them take no
memory. In a closed loop the times are not known before; its requests all have the time 0 and are taken one by one,
whenever one has ended.
"""

import datetime
import itertools
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from foretell.errors import DataError, InputError
from foretell.scheduling.inputs.traces import read_columns

Lengths = tuple[int, int]
Arrival = tuple[float, int, int]


def fixed_lengths(input_tokens: int, output_tokens: int, requests: int) -> Iterator[Lengths]:
    """Requests that are all alike."""
    return itertools.repeat((input_tokens, output_tokens), requests)


def closed_loop(lengths: Iterable[Lengths]) -> Iterator[Arrival]:
    """Requests for a closed loop: they arrive when the simulation takes them."""
    return ((0.0, *own) for own in lengths)


def poisson_arrivals(lengths: Iterable[Lengths], requests_per_s: float, seed: int = 0) -> Iterator[Arrival]:
    """Requests that arrive independently of each other, so many a second in the mean."""
    if not (0 < requests_per_s < math.inf):
        raise InputError(f"Got {requests_per_s} requests a second; it must be a number above 0.")
    return _poisson(lengths, requests_per_s, random.Random(seed))


def _poisson(lengths: Iterable[Lengths], requests_per_s: float, rng: random.Random) -> Iterator[Arrival]:
    now_s = 0.0
    for input_tokens, output_tokens in lengths:
        now_s += rng.expovariate(requests_per_s)
        yield now_s, input_tokens, output_tokens


def trace_arrivals(trace: Sequence[Arrival], requests: int, requests_per_s: float | None = None) -> Iterator[Arrival]:
    """That many requests of a trace, which begins anew where it is short; its times are stretched to a rate.

    >>> list(trace_arrivals([(1.0, 10, 5), (2.0, 20, 6)], 3, requests_per_s=1.0))
    [(0.0, 10, 5), (1.0, 20, 6), (2.0, 10, 5)]
    """
    if not trace:
        raise DataError("The trace has no request.")
    first_s = trace[0][0]
    # the last request is as far from the first of the next turn as requests are from each other in the mean
    span_s = (trace[-1][0] - first_s) * len(trace) / max(len(trace) - 1, 1) or 1.0
    stretch = 1.0 if requests_per_s is None else len(trace) / span_s / requests_per_s
    for number in range(requests):
        turn, index = divmod(number, len(trace))
        moment_s, input_tokens, output_tokens = trace[index]
        yield (moment_s - first_s + turn * span_s) * stretch, input_tokens, output_tokens


def read_azure(path: Path | str) -> list[Arrival]:
    """Azure's LLM inference traces of 2023 (conversation and code): arrivals, context and generated tokens.

    Patel et al., "Splitwise: Efficient Generative LLM Inference Using Phase Splitting", ISCA 2024. Requests without
    generated tokens count as one token.
    """
    arrivals = []
    for stamp, input_tokens, output_tokens in read_columns(path, "TIMESTAMP", "ContextTokens", "GeneratedTokens"):
        try:
            # seven digits of a second, of which Python reads six
            moment = datetime.datetime.fromisoformat(str(stamp)[:26]).replace(tzinfo=datetime.UTC)
        except ValueError:
            raise DataError(f"{path}: {stamp!r} is no time; give Azure's LLM inference trace of 2023.") from None
        arrivals.append((moment.timestamp(), max(int(input_tokens), 1), max(int(output_tokens), 1)))
    arrivals.sort()
    first_s = arrivals[0][0] if arrivals else 0.0
    return [(moment_s - first_s, *lengths) for moment_s, *lengths in arrivals]  # type: ignore[misc]
