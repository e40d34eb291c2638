"""Tests of how measured rows of served models are read and judged."""

import numpy as np
import pytest

from foretell.devices import find_device
from foretell.predictors.llm.architecture import load_architecture
from foretell.predictors.llm.deployment import Deployment
from foretell.predictors.llm.engines import RULES, shipped_engines
from foretell.predictors.llm.kernels import shipped_kernels
from lab.judging.llm.serving import Judged, fit_engines, simulate_rows
from lab.judging.llm.serving_rows import MODELS, Launch, ServedRow, _division, launch_of, teaching_models


def row(**changes: object) -> ServedRow:
    place = Deployment(load_architecture("meta-llama/Llama-3.1-8B"), find_device("h200"), weights="fp8")
    values = {"id": "x", "model": "llama-3.1-8b", "engine": "vllm", "deployment": place, "prompt": 200, "answer": 50,
              "clients": 4, "varied": True, "ttft_ms": 20.0, "tpot_ms": 5.0}  # fmt: skip
    return ServedRow(**{**values, **changes})  # type: ignore[arg-type]


def test_half_of_the_models_teach_and_checkpoints_of_one_architecture_stay_together() -> None:
    names = set(MODELS.values())
    assert set(teaching_models()) < names
    assert len(teaching_models()) == (len(names) + 1) // 2
    assert MODELS["deepseek-ai/DeepSeek-R1"] == MODELS["deepseek-ai/DeepSeek-V3"]


@pytest.mark.parametrize(
    ("sizes", "division"),
    [
        ((8, 1, 8, 1), (8, 1, 1)),
        ((64, 1, 8, 8), (8, 1, 8)),  # tp8_ep8, written as a product
        ((1, 64, 8, 8), (1, 8, 8)),
        ((1, 8, 1, 8), (1, 8, 8)),
        ((4, 1, 2, 2), (2, 1, 2)),
        ((1, None, 2, 1), (1, 2, 2)),
    ],
)
def test_divisions_are_those_of_the_ids(sizes: tuple[int | None, ...], division: tuple[int, int, int]) -> None:
    names = ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
    assert _division(dict(zip(names, sizes, strict=True))) == division


def test_a_row_is_simulated_as_it_was_measured() -> None:
    lengths = row().requests()
    assert len(lengths) == 40
    assert {request.prompt for request in lengths} <= set(range(160, 201))
    (judged,) = simulate_rows([row()], shipped_kernels(), RULES)
    assert judged.logs[0] == pytest.approx(np.log(judged.ttft_ms / 20.0))


def test_times_that_are_missing_are_found_again() -> None:
    kernels, engines = shipped_kernels(), {name: shipped_engines().engine(name) for name in RULES}
    rows = [
        row(model=model, engine=engine, clients=clients)
        for engine in ("vllm", "sglang", "trtllm")
        for model in ("llama-3.1-8b", "kimi-k2.5")
        for clients in (1, 4, 16)
    ]
    truth = simulate_rows(rows, kernels, engines)
    measured = [row(model=one.row.model, engine=one.row.engine, clients=one.row.clients, ttft_ms=one.ttft_ms,
                    tpot_ms=one.tpot_ms) for one in truth]  # fmt: skip
    fitted = fit_engines(measured, kernels)
    again = simulate_rows(measured, kernels, {name: fitted.engine(name) for name in RULES})
    assert all(isinstance(one, Judged) and abs(one.logs[1]) < 0.05 for one in again)


def test_prompts_that_wait_for_others_come_so_many_steps_later() -> None:
    plain, waiting = (
        simulate_rows([row(launch=launch, answer=1000)], shipped_kernels(), RULES)[0]
        for launch in (Launch(), Launch(wait_steps=20))
    )
    later = (waiting.ttft_ms - plain.ttft_ms) / plain.tpot_ms
    # all but the first wave, a tenth, wait; some find another prompt that waits already
    assert 10 < later < 20


def test_a_server_is_launched_as_its_script_says() -> None:
    place = row().deployment
    llama = launch_of("llama-3.1-70b", "trtllm", place, 1024, 1024, 4)
    assert (llama.token_budget, llama.wait_steps) == (2248, 20)
    assert launch_of("llama-3.1-70b", "trtllm", place, 8192, 1024, 4).wait_steps == 0
    assert launch_of("deepseek-v3", "trtllm", place, 1024, 1024, 4).token_budget == 1152
    assert launch_of("llama-3.1-70b", "vllm", place, 1024, 1024, 4) == Launch()
