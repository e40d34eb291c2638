"""Predictors: time to first token, time a token and tokens a second of a deployment under a steady load."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foretell.predictors.llm.closed_loop import ClosedLoop, Request, Served
from foretell.predictors.llm.deployment import MEMORY_FRACTION
from foretell.predictors.llm.engines import Engine
from foretell.predictors.llm.steps import Chunk, Steps
from foretell.units import KILO

_VARIATION = 0.1  # lengths vary by this share, else all requests would end at the same time
_REQUESTS_PER_CLIENT = 4
_MOST_REQUESTS = 4000
LEAST_ANSWER = 100  # tokens of the shortest answers among the rows that taught what an arrival waits for


@dataclass(frozen=True, slots=True)
class Load:
    """What clients feel, on average; tokens are those of answers, on all GPUs."""

    ttft_ms: float
    tpot_ms: float
    tokens_per_s: float
    requests_per_s: float


def serve(
    steps: Steps, engine: Engine, clients: int, requests: Sequence[Request], fraction: float = MEMORY_FRACTION
) -> list[Served]:
    """Serve requests in a closed loop on one of the replicas; times are without what an arrival waits for."""
    place = steps.deployment
    longest = max(request.prompt + request.answer for request in requests)

    def step_us(batch: int, context: float, chunks: Sequence[Chunk]) -> float:
        # a step of a pipeline passes all its stages; other requests fill them meanwhile
        host_us = engine.step_us + engine.request_us * (batch + len(chunks))
        return steps.step_us(batch, context, chunks) + host_us

    # states of linear attention count as tokens of the longest request
    per_token = place.cache_bytes_per_gpu(longest) / longest
    pool = place.pool_bytes(clients, fraction, of_free=engine.of_free)
    # the cache of a stage is shared by the requests in all stages
    capacity = max(pool / place.pipeline / per_token, longest)
    return ClosedLoop(step_us, engine, clients, capacity).run(requests)


def steady_load(steps: Steps, engine: Engine, prompt: int, answer: int, clients: int, fraction: float) -> Load:
    """A steady load: the requests with which the clients start are left out of the means."""
    place = steps.deployment
    lanes = place.data * place.pipeline
    own = max(1, -(-clients // lanes))
    count = min(_REQUESTS_PER_CLIENT * own, max(_MOST_REQUESTS, 2 * own)) + own
    random = np.random.default_rng(0)
    lengths = [
        np.maximum(np.round(tokens * random.uniform(1 - _VARIATION, 1 + _VARIATION, count)), 1).astype(int).tolist()
        for tokens in (prompt, answer)
    ]
    served = serve(steps, engine, own, [Request(*pair) for pair in zip(*lengths, strict=True)], fraction)
    steady = [one for one in served if one.arrived_ms > 0] or served
    tpot_ms = float(np.mean([one.tpot_ms for one in steady]))
    expert_layers = place.architecture.expert_layers
    # Between the tokens of a short answer lie other prompts, and one token has no time between: what an arrival waits
    # for are steps, so the shorter answers are, the more a step without a prompt counts.
    share = min((answer - 1) / (LEAST_ANSWER - 1), 1.0)
    plain_us = steps.step_us(own, prompt + answer / 2) + engine.step_us + engine.request_us * own
    step_ms = tpot_ms * share + plain_us / KILO * (1 - share)
    ttft_ms = with_arrival(float(np.mean([one.ttft_ms for one in steady])), step_ms, engine, expert_layers)
    requests_per_s = clients / (ttft_ms + (answer - 1) * tpot_ms) * KILO
    return Load(ttft_ms, tpot_ms, requests_per_s * answer, requests_per_s)


def with_arrival(ttft_ms: float, step_ms: float, engine: Engine, expert_layers: int = 0) -> float:
    """The time to a first token with what a request waits for beside the queue."""
    factor = engine.mixture_prompts if expert_layers else 1.0
    waiting_ms = engine.arrival_ms + engine.arrival_steps * step_ms + engine.expert_layer_ms * expert_layers
    return ttft_ms * factor + waiting_ms
