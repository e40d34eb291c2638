"""The page about a language model: its best place first, its limits in words, and the command that makes it."""

from foretell.workflows.serving.advise_llm import advise_llm
from foretell.workflows.serving.report_llm import report_llm

ASKED = {"input_tokens": 64, "output_tokens": 8, "weights": ["fp8"], "devices": ["l40s", "t4"]}


def test_the_page_is_that_of_the_advice() -> None:
    page = report_llm("meta-llama/Llama-3.1-8B", ttft_ms=900, rate=2, **ASKED)
    advice = advise_llm("meta-llama/Llama-3.1-8B", ttft_ms=900, rate=2, **ASKED)
    assert f"<h1>{advice.heading()}</h1>" in page
    assert "a first token after 900 ms at most; 2 requests a second" in page
    assert "t4 has no tensor cores" in page or "t4" in page
    assert "--llm --input-tokens 64 --output-tokens 8 --ttft-ms 900 --rate 2" in page


def test_limits_that_nobody_keeps_leave_the_reasons() -> None:
    page = report_llm("meta-llama/Llama-3.1-8B", tpot_ms=1e-6, **ASKED)
    assert "no place keeps the limits" in page
    assert "with one request at a time" in page
