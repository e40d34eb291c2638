"""What a GPU draws: more with more work, never above its limit; a mixture reads the experts that tokens choose."""

import pytest

from foretell.devices import find_device
from foretell.predictors.llm.architecture import load_architecture
from foretell.predictors.llm.power import power_w, touched

H200 = find_device("h200")


def test_power_grows_with_arithmetic_and_traffic_up_to_the_limit() -> None:
    draws = [
        power_w(H200, flops, moved) for flops, moved in ((0, 0), (1e14, 0), (1e14, 2e12), (9e14, 4e12), (9e16, 9e14))
    ]
    assert draws == sorted(draws)
    assert draws[0] == pytest.approx(0.55 * H200.tdp_w)
    assert draws[0] < draws[1] < draws[2]
    assert draws[-1] == H200.tdp_w


def test_a_mixture_reads_more_experts_with_more_tokens_and_a_dense_model_all() -> None:
    mixture, dense = load_architecture("Qwen/Qwen3-30B-A3B"), load_architecture("meta-llama/Llama-3.1-8B")
    assert touched(dense, 1) == touched(dense, 100) == 1.0
    shares = [touched(mixture, batch) for batch in (1, 8, 64, 1000)]
    assert shares == sorted(shares)
    assert shares[0] < 0.3
    assert shares[-1] == pytest.approx(1.0, abs=0.01)
