"""Workflows: a page about where to serve a language model, from the advice of ``foretell advise --llm``."""

from collections.abc import Callable, Sequence
from typing import Any

from foretell.rendering.html.serving_page import SHOWN, ServingRow, serving_page
from foretell.workflows.advise import Renting
from foretell.workflows.report_provenance import remaking_command
from foretell.workflows.serving.advise_llm import LlmChoice, advise_llm

_HOW_FAR = (
    "Against measured servers on H200 nodes, of models that taught nothing: median error of the time a token 5 %, "
    "of the first token 11 % and of the throughput 4 % (docs/lab/0057-serving-parts.md). Limits are those of means at "
    "a steady load."
)
_LIMITS = (
    ("ttft_ms", "a first token after {:g} ms at most"), ("tpot_ms", "{:g} ms a token at most"),
    ("rate", "{:g} requests a second"), ("budget", "{:g} $/h at most"),
)  # fmt: skip


def report_llm(
    model: str,
    *,
    input_tokens: int,
    output_tokens: int,
    ttft_ms: float | None = None,
    tpot_ms: float | None = None,
    rate: float | None = None,
    budget: float | None = None,
    weights: Sequence[str] = ("published", "fp8", "int4"),
    engine: str = "paged",
    devices: Sequence[str] = ("all",),
    renting: Renting | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> str:
    """The page, as one HTML text; the arguments are those of `foretell.advise_llm`.

    >>> asked = {"input_tokens": 64, "output_tokens": 8, "weights": ["fp8"], "devices": ["l40s"]}
    >>> page = report_llm("meta-llama/Llama-3.1-8B", **asked)
    >>> "l40s, fp8" in page, "<script" in page
    (True, False)
    """
    renting = renting or Renting()
    limits: dict[str, Any] = {"ttft_ms": ttft_ms, "tpot_ms": tpot_ms, "rate": rate, "budget": budget}
    advice = advise_llm(
        model, input_tokens=input_tokens, output_tokens=output_tokens, weights=weights, engine=engine,
        devices=devices, renting=renting, progress=progress, **limits,
    )  # fmt: skip
    options = {
        "--llm": True, "--input-tokens": input_tokens, "--output-tokens": output_tokens,
        **{f"--{name.replace('_', '-')}": value for name, value in limits.items()},
        "--weights": ",".join(weights), "--engine": engine, "--devices": ",".join(devices),
        "--clouds": ",".join(renting.clouds), "--region": renting.region, "--country": renting.country,
        "--pue": renting.pue, "--market": renting.market if renting.market == "spot" else None,
        "--prices": renting.prices,
    }  # fmt: skip
    asked = [text.format(limits[name]) for name, text in _LIMITS if limits[name] is not None]
    lead = f"{input_tokens:,} tokens in, {output_tokens:,} out. "
    lead += f"Limits: {'; '.join(asked)}." if asked else "There are no limits, so many requests at a time win."
    # those of the places that are not folded
    warnings = dict.fromkeys(text for choice in advice.choices[:SHOWN] for text in choice.prediction.warnings)
    return serving_page(
        advice.heading(),
        lead,
        [_row(choice) for choice in advice.choices],
        [(refused.place, refused.reason) for refused in advice.refused],
        [*warnings, _HOW_FAR],
        remaking_command(model, options),
    )


def _row(choice: LlmChoice) -> ServingRow:
    one = choice.prediction
    return ServingRow(
        choice.place, choice.instance, one.concurrency, one.ttft_ms, one.tpot_ms, one.tokens_per_s,
        choice.usd_per_million_tokens, one.energy_j_per_token, choice.copies, one.extrapolated, choice.at_risk,
    )  # fmt: skip
