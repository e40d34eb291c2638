"""A steady load: rates and times belong together, and more clients wait longer."""

from dataclasses import replace

import pytest

from foretell.devices import find_device
from foretell.predictors.llm.architecture import load_architecture
from foretell.predictors.llm.closed_loop import Request
from foretell.predictors.llm.deployment import MEMORY_FRACTION, Deployment
from foretell.predictors.llm.engines import shipped_engines
from foretell.predictors.llm.kernels import shipped_kernels
from foretell.predictors.llm.serving import serve, steady_load, with_arrival
from foretell.predictors.llm.steps import Steps

ENGINE = shipped_engines().engine("vllm")
STEPS = Steps(Deployment(load_architecture("meta-llama/Llama-3.1-8B"), find_device("h200")), shipped_kernels(), "vllm")


def test_every_request_is_served_once() -> None:
    requests = [Request(200 + place, 10 + place) for place in range(12)]
    served = serve(STEPS, ENGINE, 4, requests)
    assert len(served) == len(requests)
    assert all(one.ttft_ms > 0 and one.tpot_ms > 0 for one in served)
    # four clients start at once, and each sends its next request when its last has ended
    assert sum(one.arrived_ms == 0 for one in served) == 4


def test_rates_follow_from_the_times_and_clients_wait_for_each_other() -> None:
    few, many = (steady_load(STEPS, ENGINE, 512, 32, clients, MEMORY_FRACTION) for clients in (2, 64))
    for load, clients in ((few, 2), (many, 64)):
        assert load.requests_per_s == pytest.approx(1000 * clients / (load.ttft_ms + 31 * load.tpot_ms))
        assert load.tokens_per_s == pytest.approx(32 * load.requests_per_s)
    assert many.tpot_ms > few.tpot_ms
    assert many.ttft_ms > few.ttft_ms
    assert many.tokens_per_s > few.tokens_per_s


def test_a_longer_answer_never_means_more_requests() -> None:
    """One token more halved the requests a second: an arrival was taken to wait for steps full of prompts."""
    loads = [steady_load(STEPS, ENGINE, 1024, answer, 16, MEMORY_FRACTION) for answer in (2, 3, 4, 8, 32, 100, 128)]
    rates = [load.requests_per_s for load in loads]
    assert rates == sorted(rates, reverse=True)


def test_the_first_token_of_one_client_does_not_wait_for_its_others() -> None:
    loads = [steady_load(STEPS, ENGINE, 1024, answer, 1, MEMORY_FRACTION) for answer in (1, 2, 50, 200)]
    assert [load.ttft_ms for load in loads] == pytest.approx([loads[0].ttft_ms] * 4, rel=0.01)


def test_an_arrival_waits_beside_the_queue() -> None:
    assert with_arrival(10.0, 5.0, ENGINE) == pytest.approx(10 + ENGINE.arrival_ms + 5 * ENGINE.arrival_steps)
    engine = replace(ENGINE, mixture_prompts=1.3, expert_layer_ms=2.0)
    longer = with_arrival(10.0, 5.0, engine, expert_layers=7) - with_arrival(10.0, 5.0, engine)
    assert longer == pytest.approx(10 * 0.3 + 7 * 2.0)
