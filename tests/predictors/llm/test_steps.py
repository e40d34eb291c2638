"""Tests of steps: they grow with what they do, never beat the hardware, and read the shipped kernels."""

from dataclasses import replace

import numpy as np
import pytest

from foretell.devices import find_device
from foretell.predictors.llm.architecture import load_architecture
from foretell.predictors.llm.closed_loop import ClosedLoop, Request
from foretell.predictors.llm.deployment import Deployment
from foretell.predictors.llm.engines import RULES, shipped_engines
from foretell.predictors.llm.kernels import KINDS, SCHEMES, kernels_from_bytes, kernels_to_bytes, shipped_kernels
from foretell.predictors.llm.serving import steady_load
from foretell.predictors.llm.steps import _BATCHES, _CONTEXTS, Chunk, Steps
from foretell.scheduling.serving.requests import closed_loop
from foretell.scheduling.serving.simulation import Deployment as Servers
from foretell.scheduling.serving.simulation import simulate_serving

H200 = find_device("h200")
MODELS = ("meta-llama/Llama-3.1-8B", "deepseek-ai/DeepSeek-V2-Lite", "openai/gpt-oss-20b", "Qwen/Qwen3-30B-A3B")


def steps_of(name: str, framework: str | None = None, **options: object) -> Steps:
    model = load_architecture(name)
    return Steps(Deployment(model, H200, weights=model.stored, **options), shipped_kernels(), framework)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", MODELS)
def test_a_step_is_no_faster_than_its_weights_can_be_read(name: str) -> None:
    steps = steps_of(name)
    place = steps.deployment
    # at a large batch all experts are read
    read_us = (place.weights_bytes - place.architecture.hidden * place.architecture.vocabulary * 2) / (4.8e12 / 1e6)
    assert steps.step_us(512, 512) > 0.85 * read_us
    assert steps.step_us(1, 16) > 100


@pytest.mark.parametrize("name", MODELS)
def test_a_step_grows_with_requests_context_and_prompts(name: str) -> None:
    steps = steps_of(name)
    assert steps.step_us(256, 1000) > steps.step_us(4, 1000)
    assert steps.step_us(64, 30000) > steps.step_us(64, 500)
    assert steps.step_us(64, 500, [Chunk(4096)]) > steps.step_us(64, 500)
    assert steps.step_us(0, 0, [Chunk(8192)]) > 1.5 * steps.step_us(0, 0, [Chunk(2048)])
    # a chunk that sees more of its prompt takes longer
    assert steps.prompts_us([Chunk(1024, 16384)]) > steps.prompts_us([Chunk(1024)])


def test_the_simulation_of_servers_and_the_closed_loop_agree() -> None:
    steps = steps_of(MODELS[0], "vllm")
    lengths = [(800 + 37 * number % 300, 40 + 11 * number % 25) for number in range(160)]
    oracle = simulate_serving(closed_loop(lengths), Servers(steps.seconds, 10**9), concurrency=16)
    loop = ClosedLoop(lambda *step: steps.step_us(*step), RULES["vllm"], 16, 1e9)
    served = loop.run([Request(*pair) for pair in lengths])
    assert np.mean([one.ttft_ms for one in served]) == pytest.approx(1000 * oracle.ttft.mean_s, rel=0.02)
    assert np.mean([one.tpot_ms for one in served]) == pytest.approx(1000 * oracle.tpot.mean_s, rel=0.02)


def test_a_step_by_sums_is_the_step_of_its_chunks() -> None:
    steps = steps_of(MODELS[0])
    past = 3000
    chunk = steps.step_us(4, 500, [Chunk(1000, past)]) / 1e6
    assert steps.seconds(1000, 1000 * (past + 500.5), 4, 2000.0) == pytest.approx(chunk, rel=1e-6)
    prompts = steps.step_us(0, 0, [Chunk(512)] * 4) / 1e6
    assert steps.seconds(2048, 4 * 512 * 513 / 2, 0, 0.0) == pytest.approx(prompts, rel=1e-6)


def test_more_gpus_are_faster_but_not_as_many_times() -> None:
    one, eight = steps_of(MODELS[0]), steps_of(MODELS[0], tensor=8)
    ratio = one.step_us(64, 4000) / eight.step_us(64, 4000)
    assert 1.3 < ratio < 8


def test_arithmetic_never_beats_the_peak() -> None:
    kernels = shipped_kernels()
    sizes = np.array([4096.0, 8192.0, 16384.0])
    for name, peak in (("bf16", 989.4e12), ("fp8", 1978.9e12)):
        work = {"m": sizes, "n": sizes, "k": sizes, "scheme": [name] * 3}
        assert (kernels.times_us("product", work, H200, "vllm") > 2 * sizes**3 / peak * 1e6).all()


def test_trees_survive_their_file() -> None:
    kernels = shipped_kernels()
    again = kernels_from_bytes(kernels_to_bytes(kernels))
    assert again.frameworks == kernels.frameworks
    assert set(again.trees) == set(KINDS)
    work = {"m": np.array([7.0]), "n": np.array([512.0]), "k": np.array([512.0]), "scheme": ["bf16"]}
    assert again.times_us("product", work, H200, None) == kernels.times_us("product", work, H200, None)


def test_a_framework_that_was_not_measured_gets_the_mean_of_others() -> None:
    kernels = shipped_kernels()
    assert 0 not in kernels.seen("product", "fp8_block")  # vLLM's rows are those of its host
    assert set(kernels.seen("product", "bf16")) == {0, 1, 2}
    work = {"m": np.array([64.0]), "n": np.array([4096.0]), "k": np.array([4096.0]), "scheme": ["fp8_block"]}
    assert kernels.times_us("product", work, H200, "vllm") == kernels.times_us("product", work, H200, None)
    assert {name.split("/")[1] for name in kernels.frameworks if name.startswith("product")} <= set(SCHEMES)


@pytest.mark.parametrize("engine", list(RULES))
def test_a_load_has_more_tokens_and_longer_waits_with_more_clients(engine: str) -> None:
    host = shipped_engines().engine(engine)
    steps = steps_of(MODELS[0], host.framework)
    few, many = (steady_load(steps, host, 512, 64, clients, 0.9) for clients in (2, 64))
    assert many.tokens_per_s > 3 * few.tokens_per_s
    assert many.tpot_ms > few.tpot_ms
    assert many.ttft_ms > few.ttft_ms
    assert many.requests_per_s * 64 == pytest.approx(many.tokens_per_s)


def test_steps_of_plain_torch_differ_by_their_attention_alone() -> None:
    place = Deployment(load_architecture("meta-llama/Llama-3.1-8B"), find_device("h200"))
    static, paged, engines = (Steps(place, shipped_kernels(), name) for name in ("torch", "torch-paged", None))
    assert static.token_us(64) == paged.token_us(64)
    assert static.generation_us(64, 2048) != paged.generation_us(64, 2048)
    # three ways to run the same model: none is far from the others
    times = [steps.step_us(64, 2048) for steps in (static, paged, engines)]
    assert max(times) < 1.5 * min(times)


def test_many_tokens_throttle_the_gpu_but_fp8_tables_hold_that_already() -> None:
    place = Deployment(load_architecture("meta-llama/Llama-3.1-8B"), find_device("h200"))
    steps = Steps(place, shipped_kernels(), "vllm")
    assert steps._sustained(256) == 1
    assert 1 < steps._sustained(512) < steps._sustained(1024) == steps._sustained(8192)
    assert Steps(replace(place, weights="fp8"), shipped_kernels(), "vllm")._sustained(8192) == 1
    assert Steps(replace(place, weights="fp8"), shipped_kernels(), "trtllm")._sustained(8192) > 1


@pytest.mark.parametrize("name", MODELS)
def test_of_the_table_of_generations_only_what_is_asked_for_is_made(name: str) -> None:
    steps = steps_of(name)
    batch, context = (grid.ravel() for grid in np.meshgrid(_BATCHES, _CONTEXTS, indexing="ij"))
    whole = np.array(steps._generation_logs(batch, context)).reshape(len(_BATCHES), len(_CONTEXTS))
    found = steps.generation_us(5.5, 1100.0)
    assert len(steps._generations) == 2
    # in logarithms a plane between four places
    x, y = np.log(5.5), np.log(1100.0)
    by_batch = [np.interp(y, np.log(_CONTEXTS), row) for row in whole]
    assert found == pytest.approx(np.exp(np.interp(x, np.log(_BATCHES), by_batch)), rel=1e-12)
    assert steps.generation_us(5.5, 1e6) > steps.generation_us(5.5, 130_000.0)  # beyond the last place
    assert len(steps._generations) == 4
