"""Tests of ``foretell.llm``: what fits, what it says, and what it refuses."""

import importlib
import json
import subprocess
import sys

import pytest

import foretell
from foretell.errors import DeviceError, InputError, ModelError
from foretell.records import Estimate, Prediction

LLAMA = "meta-llama/Llama-3.1-8B"
KEYS = {
    "fits", "gpus", "smallest_gpus", "max_concurrency", "weights_mib", "kv_cache_mib_per_token", "memory_mib_per_gpu",
    "ttft_ms", "tpot_ms", "tokens_per_s", "tokens_per_s_per_gpu", "requests_per_s", "energy_j_per_token",
    "usd_per_million_tokens", "warnings",
}  # fmt: skip


def ask(model: str = LLAMA, **options: object) -> foretell.LlmPrediction:
    return foretell.llm(model, **{"device": "h200", "input_tokens": 256, "output_tokens": 128, **options})  # type: ignore[arg-type]


def test_an_answer_has_the_keys_of_the_contract() -> None:
    answer = ask(concurrency=8)
    record = json.loads(json.dumps(answer.to_dict(), allow_nan=False))
    assert set(record) >= KEYS
    assert record["fits"] is True
    assert record["kv_cache_mib_per_token"] == 0.125
    assert record["weights_mib"] == pytest.approx(2 * 8.03e9 / 2**20, rel=0.001)
    for name in ("ttft_ms", "tpot_ms", "tokens_per_s", "memory_mib_per_gpu", "energy_j_per_token"):
        assert 0 < record[name]["low"] < record[name]["value"] < record[name]["high"]
    assert answer.heading().startswith(f"{LLAMA} fits on 1 × h200")


def test_gpus_that_divide_a_model_are_rented_in_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    from foretell.advisors.placement import Offer
    from foretell.workflows import advise

    offers = [Offer("h200", "single", 1, 2.0), Offer("h200", "eight", 8, 24.0), Offer("h200", "unknown", 8, None)]
    monkeypatch.setattr(advise, "find_offers", lambda *_: offers)
    alone, divided = ask(concurrency=8), ask(concurrency=8, gpus=4, tensor_parallel=4)
    assert (alone.offer, divided.offer) == ("single", "eight")
    for answer, usd_per_h in ((alone, 2.0), (divided, 12.0)):
        usd = usd_per_h / 3600 / answer.tokens_per_s.value * 1e6
        assert answer.usd_per_million_tokens.value == pytest.approx(usd)
    # two whole copies may be on two machines
    assert ask(concurrency=8, gpus=2, tensor_parallel=1, data_parallel=2).offer == "single"
    monkeypatch.setattr(advise, "find_offers", lambda *_: offers[:1])
    unpriced = ask(concurrency=8, gpus=4, tensor_parallel=4)
    assert unpriced.usd_per_million_tokens is None
    assert any("4 of them in one machine" in note for note in unpriced.warnings)


def test_what_does_not_fit_says_how_many_gpus_it_takes() -> None:
    answer = ask("meta-llama/Llama-3.1-70B", device="h100-sxm", gpus=1)
    assert not answer.fits
    assert answer.smallest_gpus == 2
    assert answer.ttft_ms is None
    assert "ttft_ms" not in answer.to_dict()
    assert "does not fit" in answer.heading()
    assert "takes 2" in answer.heading()
    alone = ask("deepseek-ai/DeepSeek-V3", device="h100-sxm")
    assert not alone.fits
    assert alone.smallest_gpus is None


def test_without_gpus_the_least_that_hold_all_requests_are_taken() -> None:
    answer = ask("meta-llama/Llama-3.1-70B", device="h100-sxm", input_tokens=1024, output_tokens=256, concurrency=64)
    assert (answer.gpus, answer.smallest_gpus) == (4, 2)
    assert answer.max_concurrency >= 64


def test_an_answer_of_one_token_has_no_time_between_tokens() -> None:
    answer = ask(output_tokens=1, concurrency=2)
    assert answer.ttft_ms is not None
    assert answer.tpot_ms is None
    assert answer.energy_j_per_token is not None


def test_short_answers_are_said_to_be_unmeasured_and_are_less_sure() -> None:
    short, long = ask(output_tokens=20), ask(output_tokens=100)
    assert any("fewer than 100 tokens" in warning for warning in short.warnings)
    assert not any("fewer than" in warning for warning in long.warnings)
    widths = [answer.ttft_ms.high / answer.ttft_ms.value for answer in (short, long)]  # type: ignore[union-attr]
    assert widths[0] > widths[1]


def test_more_requests_than_the_cache_holds_wait() -> None:
    options = {"input_tokens": 8000, "output_tokens": 200, "device": "l40s", "gpus": 1}
    few, many = ask(concurrency=4, **options), ask(concurrency=64, **options)
    assert many.max_concurrency < 64
    assert any("at a time" in warning for warning in many.warnings)
    assert many.ttft_ms.value > 5 * few.ttft_ms.value  # type: ignore[union-attr]


def test_loads_beyond_what_was_measured_are_said() -> None:
    assert not any("not measured" in warning for warning in ask(concurrency=256).warnings)
    assert any("512" in warning for warning in ask(concurrency=700, input_tokens=64, output_tokens=4).warnings)


def test_quantised_weights_are_smaller_and_unmeasured_ones_are_said() -> None:
    plain, fp8, int4 = ask(), ask(weights="fp8"), ask(weights="int4")
    assert int4.weights_mib < fp8.weights_mib < plain.weights_mib
    assert fp8.tpot_ms.value < plain.tpot_ms.value  # type: ignore[union-attr]
    assert any("extrapolated" in warning for warning in int4.warnings)
    widths = [one.tpot_ms.high / one.tpot_ms.low for one in (fp8, int4)]  # type: ignore[union-attr]
    assert widths[1] > widths[0]


def test_a_gpu_without_measured_kernels_is_extrapolated() -> None:
    answer, known = ask(device="a10g", gpus=1), ask(device="l40s", gpus=1)
    assert answer.extrapolated
    assert not known.extrapolated
    assert any("extrapolated" in warning for warning in answer.warnings)
    assert answer.tpot_ms.high / answer.tpot_ms.low > known.tpot_ms.high / known.tpot_ms.low  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"input_tokens": 200_000}, "at most 131,072"),
        ({"tensor_parallel": 3}, "does not divide"),
        ({"gpus": 16}, "network"),
        ({"expert_parallel": 2}, "no experts"),
        ({"input_tokens": 0}, "from 1"),
        ({"concurrency": -1}, "from 1"),
        ({"concurrency": 2.5}, "whole number"),
        ({"input_tokens": True}, "whole number"),
        ({"output_tokens": "12"}, "whole number"),
        ({"pue": 0.5}, "PUE is 0.5"),
        ({"pue": float("nan")}, "PUE is nan"),
        ({"memory_fraction": 1.5}, "at most 1"),
        ({"engine": "vlm"}, "Did you mean 'vllm'"),
        ({"weights": "nothing"}, r"'nothing'\. Choose from: [^.]*\.$"),  # the choices once
        ({"engine": "nothing"}, r"'nothing'\. Choose from: [^.]*\.$"),
        ({"engine": "eager", "weights": "fp8"}, "--engine paged"),
    ],
)
def test_bad_input_is_one_line(options: dict[str, object], word: str) -> None:
    with pytest.raises(InputError, match=word) as raised:
        ask(**options)
    assert "\n" not in str(raised.value)


def test_a_gpu_of_another_maker_is_refused() -> None:
    """Its number of a compute capability is no number (gfx942)."""
    with pytest.raises(DeviceError, match="mi300x is a GPU of AMD"):
        ask(device="mi300x")


def test_a_model_of_the_other_table_is_found_and_an_encoder_is_called_one() -> None:
    assert ask("hf:gpt2", input_tokens=512, output_tokens=100).fits
    with pytest.raises(ModelError, match="bert"):
        ask("hf:bert-base-uncased", input_tokens=128, output_tokens=100)


def test_units_that_a_gpu_lacks_are_refused() -> None:
    with pytest.raises(DeviceError, match="no fp8 units"):
        ask(device="a100", weights="fp8")
    with pytest.raises(DeviceError, match="no fp4 units"):
        ask(weights="fp4")


def test_no_torch_is_imported() -> None:
    code = (
        "import sys, foretell; "
        f"foretell.llm({LLAMA!r}, device='h200', input_tokens=64, output_tokens=8); "
        "print([name for name in ('torch', 'pandas', 'scipy', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_eager_starts_and_ends_all_requests_together(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def predict(model: str, *, mode: str, batch_size: int, **others: object) -> Prediction:
        asked.append((model, mode, batch_size, others.get("input_shape"), others.get("context")))
        ms = 30.0 if mode == "prefill" else 10.0
        return Prediction("m", "h200", None, "eager", mode, batch_size, "bf16", "x", latency_ms=Estimate(ms, ms, ms))

    # the package has a function of the same name, so the module is found by its own
    monkeypatch.setattr(importlib.import_module("foretell.workflows.predict"), "predict", predict)
    answer = ask(engine="eager", concurrency=4, input_tokens=100, output_tokens=20)
    assert asked == [
        ("hf:meta-llama/Llama-3.1-8B", "prefill", 4, (100,), None),
        ("hf:meta-llama/Llama-3.1-8B", "decode", 4, None, 110),
    ]
    assert answer.ttft_ms.value == 30.0  # type: ignore[union-attr]
    assert answer.tokens_per_s.value == pytest.approx(4 * 20 / (0.03 + 19 * 0.01))  # type: ignore[union-attr]
