"""``foretell simulate``."""

import json

import pytest

from command_line import run

MODEL = "meta-llama/Llama-3.1-8B"


def test_prints_percentiles(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("simulate", MODEL, "--requests-per-s", "6", "--requests", "100", "--ttft-limit-ms", "500")
    output = json.loads(run(capsys, *options, "--json"))
    assert (output["requests"], output["offered_per_s"], output["gpus"]) == (100, 6, 1)
    for name in ("ttft_ms", "tpot_ms"):
        values = [output[name][part]["value"] for part in ("p50", "p95", "p99")]
        assert values == sorted(values)
        assert all(own["low"] < own["value"] < own["high"] for own in output[name].values())
    assert output["good_share"] == 1
    shown = run(capsys, *options)
    assert f"{MODEL} on 1 × h200" in shown
    assert "first token, p99" in shown


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "--requests-per-s 4, --concurrency 32, or --trace FILE"),
        (("-r", "1", "-c", "1"), "not both"),
        (("-r", "0"), "above 0"),
        (("-c", "0"), "from 1 to"),
        (("-r", "1", "--engine", "vlm"), "Did you mean 'vllm'?"),
        (("-r", "1", "--input-tokens", "999999"), "at most 131,072"),
        (("-r", "1", "--prefix-share", "1"), "below 1"),
        (("-r", "1", "-d", "a10g", "--gpus", "1", "--input-tokens", "99999"), "does not fit on 1 × a10g; it takes"),
        (("-r", "1", "--tensor-parallel", "3"), "3"),
        (("--trace", "absent.parquet"), "Cannot read the trace absent.parquet"),
    ],
)
def test_refuses_in_one_line(options: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, "simulate", MODEL, *options, code=2)
    assert says in shown
    assert shown.count("\n") == 1
