"""Servers, simulated: a row gives about what the closed loop of ``foretell llm`` gives."""

import pytest

from foretell.devices import find_device
from foretell.predictors.llm.architecture import load_architecture
from foretell.predictors.llm.deployment import Deployment
from foretell.predictors.llm.engines import RULES, shipped_engines
from foretell.predictors.llm.kernels import shipped_kernels
from lab.judging.llm.serving import simulate_rows
from lab.judging.llm.serving_rows import ServedRow
from lab.judging.llm.serving_simulation import _errors, follow_rows


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_agrees_with_the_closed_loop(engine: str) -> None:
    place = Deployment(load_architecture("meta-llama/Llama-3.1-8B"), find_device("h200"), "bf16", 2)
    row = ServedRow("made", "llama", engine, place, 512, 128, 8, varied=True, ttft_ms=50.0, tpot_ms=6.0)
    fitted = shipped_engines()
    followed = follow_rows([row])
    looped = simulate_rows([row], shipped_kernels(), {name: fitted.engine(name) for name in RULES})
    apart = _errors(followed, looped)
    assert apart["TTFT apart"] == pytest.approx(0, abs=0.05)
    assert apart["TPOT apart"] == pytest.approx(0, abs=0.02)
