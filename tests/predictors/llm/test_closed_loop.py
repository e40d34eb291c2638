"""Tests of a closed loop with continuous batching: nothing is lost, and simple loads have known times."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from foretell.errors import InputError
from foretell.predictors.llm.closed_loop import ClosedLoop, Request
from foretell.predictors.llm.engines import RULES, Engine
from foretell.predictors.llm.steps import Chunk

VLLM, SGLANG, TRTLLM = (RULES[name] for name in ("vllm", "sglang", "trtllm"))


def step_us(batch: int, context: float, chunks: Sequence[Chunk]) -> float:
    """1 ms a step, and 1 µs for each token of a prompt."""
    del batch, context
    return 1000.0 + sum(chunk.tokens for chunk in chunks)


def run(engine: Engine, clients: int, requests: list[Request], capacity: float = 1e9):
    return ClosedLoop(step_us, engine, clients, capacity).run(requests)


def test_one_client_waits_for_its_prompt_and_then_for_each_token() -> None:
    served = run(VLLM, 1, [Request(500, 11)] * 3)
    assert [one.ttft_ms for one in served] == pytest.approx([1.5] * 3)
    assert [one.tpot_ms for one in served] == pytest.approx([1.0] * 3)
    assert served[1].arrived_ms == pytest.approx(served[0].last_ms)


def test_a_long_prompt_is_computed_in_chunks() -> None:
    engine = replace(VLLM, token_budget=1000)
    (one,) = run(engine, 1, [Request(2500, 2)])
    assert one.ttft_ms == pytest.approx(3 * 1.0 + 2.5)
    (whole,) = run(replace(TRTLLM, token_budget=1000), 1, [Request(2500, 2)])
    assert whole.ttft_ms == pytest.approx(1.0 + 2.5)


@pytest.mark.parametrize("engine", [VLLM, SGLANG, TRTLLM])
@pytest.mark.parametrize("capacity", [1e9, 2500.0])
def test_every_request_ends_with_all_its_tokens(engine: Engine, capacity: float) -> None:
    requests = [Request(100 + 37 * number % 400, 20 + 13 * number % 90) for number in range(120)]
    served = run(engine, 16, requests, capacity)
    assert sorted((one.request.prompt, one.request.answer) for one in served) == sorted(
        (request.prompt, request.answer) for request in requests
    )
    assert all(one.arrived_ms <= one.first_ms <= one.last_ms for one in served)
    # a token takes at least one step
    assert all(one.tpot_ms >= 1.0 - 1e-9 for one in served if one.request.answer > 1)


def test_little_s_law_holds() -> None:
    requests = [Request(200, 50 + number % 30) for number in range(400)]
    served = run(VLLM, 8, requests)
    in_flight = sum(one.last_ms - one.arrived_ms for one in served) / max(one.last_ms for one in served)
    assert in_flight == pytest.approx(8, rel=0.03)


def test_prompts_delay_tokens_of_others_whether_mixed_or_not() -> None:
    requests = [Request(2000, 20 + number % 7) for number in range(64)]
    for engine in (VLLM, SGLANG):
        served = run(engine, 8, requests)
        assert sum(one.tpot_ms for one in served) / len(served) > 1.5


def test_a_full_cache_makes_requests_wait() -> None:
    requests = [Request(100, 100)] * 40
    free, full = run(TRTLLM, 10, requests), run(TRTLLM, 10, requests, capacity=400.0)
    assert max(one.ttft_ms for one in full) > 10 * max(one.ttft_ms for one in free)
    # an engine that does not reserve starts more of them, and computes some prompts again
    greedy = run(VLLM, 10, requests, capacity=400.0)
    assert sum(one.ttft_ms for one in greedy) < sum(one.ttft_ms for one in full)


def test_a_request_that_never_fits_is_refused() -> None:
    with pytest.raises(InputError, match="does not fit"):
        run(VLLM, 1, [Request(100, 100)], capacity=150.0)
