"""Simulated servers of a real model: they agree with the steady load, and react as servers do."""

from pathlib import Path

import pytest

from foretell.errors import InputError
from foretell.workflows.llm import llm
from foretell.workflows.serving.simulate import SimulatedServing, simulate

MODEL = "meta-llama/Llama-3.1-8B"


def run(requests: int = 300, **options: object) -> SimulatedServing:
    return simulate(MODEL, requests=requests, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("concurrency", [1, 16])
@pytest.mark.parametrize("engine", ["vllm", "trtllm"])
def test_agrees_with_the_steady_load(engine: str, concurrency: int) -> None:
    """A closed loop here, and that of ``foretell llm``, which was written apart."""
    steady = llm(MODEL, input_tokens=1024, output_tokens=256, concurrency=concurrency, engine=engine)
    followed = run(concurrency=concurrency, engine=engine)
    assert steady.ttft_ms is not None
    assert steady.tpot_ms is not None
    assert steady.tokens_per_s is not None
    assert followed.tpot_ms["mean"].value == pytest.approx(steady.tpot_ms.value, rel=0.05)
    assert followed.ttft_ms["mean"].value == pytest.approx(steady.ttft_ms.value, rel=0.2)
    assert followed.tokens_per_s == pytest.approx(steady.tokens_per_s.value, rel=0.1)


def test_load_prefixes_and_replicas() -> None:
    """More requests take longer, a cached prefix and more servers help, and too many are said."""
    low, high = run(requests_per_s=2.0), run(requests_per_s=12.0)
    assert low.tpot_ms["mean"].value < high.tpot_ms["mean"].value
    assert run(requests_per_s=12.0, prefix_share=0.8).ttft_ms["mean"].value < high.ttft_ms["mean"].value
    assert run(requests_per_s=12.0, data_parallel=2).tpot_ms["mean"].value < high.tpot_ms["mean"].value
    apart = run(requests_per_s=12.0, prefill_servers=1)
    assert apart.gpus == 2
    assert apart.tpot_ms["p99"].value < high.tpot_ms["p99"].value
    flooded = run(1000, requests_per_s=100.0)
    assert any("do not keep up" in note for note in flooded.warnings)
    assert not any("do not keep up" in note for note in high.warnings)


def test_limits_decide_what_is_good() -> None:
    free = run(requests_per_s=4.0)
    assert free.good_share == 1
    strict = run(requests_per_s=4.0, ttft_limit_ms=free.ttft_ms["p50"].value)
    assert 0.3 < strict.good_share < 0.7


def test_a_trace_gives_lengths_and_times(tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    stamps = [f"2023-11-16 18:15:{second:02}.0000000" for second in range(10)]
    columns = {"TIMESTAMP": stamps, "ContextTokens": [100] * 10, "GeneratedTokens": [20] * 10}
    parquet.write_table(pa.table(columns), tmp_path / "trace.parquet")
    followed = run(40, trace=tmp_path / "trace.parquet")
    assert followed.offered_per_s == pytest.approx(1.0)
    assert run(40, trace=tmp_path / "trace.parquet", requests_per_s=5.0).offered_per_s == pytest.approx(5.0)
    assert run(40, trace=tmp_path / "trace.parquet", concurrency=4).mean_in_flight == pytest.approx(4, rel=0.2)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"requests_per_s": 0}, "above 0"),
        ({"concurrency": 1.5}, "whole number"),
        ({"requests_per_s": 1, "ttft_limit_ms": -1}, "--ttft-limit-ms is -1"),
        ({"requests_per_s": 1, "tpot_limit_ms": float("nan")}, "--tpot-limit-ms is nan"),
    ],
)
def test_bad_input_is_one_line(options: dict[str, float], word: str) -> None:
    with pytest.raises(InputError, match=word) as raised:
        run(**options)  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)
