"""Buttons of the page: what they ask, and that an error is an answer."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from foretell.errors import InputError
from foretell.web.page.tabs import MOST_DEVICES, Tabs, model_of, question_fields
from foretell.web.questions import EXAMPLE, read_question


@pytest.fixture
def press(client: TestClient) -> Callable[..., tuple[str, str]]:
    """Press a button in the loop of the running server."""
    tabs = Tabs(client.app.state.queue)  # type: ignore[attr-defined]
    return lambda name, *inputs: client.portal.call(getattr(tabs, name), *inputs)  # type: ignore[union-attr]


@pytest.fixture
def ticket(client: TestClient, onnx_bytes: bytes) -> str:
    model: str = client.post("/api/uploads", files={"file": ("tiny.onnx", onnx_bytes)}).json()["model"]
    return model


def test_predict_compare_advise_and_report(press: Callable[..., tuple[str, str]], ticket: str) -> None:
    page, text = press("predict", "", ticket, ["l4", "h200"], 3, "fp16", "inference", None, "")
    assert "tiny.onnx" in page
    content = json.loads(text)
    assert (content["prediction"]["device"], content["prediction"]["batch_size"]) == ("l4", 3)
    assert {(row["device"], row["dtype"]) for row in content["sweep"]} == {("l4", "fp16"), ("h200", "fp16")}
    page, text = press("compare", "", ticket, "", ticket, "h200", 1, "fp32", "training")
    assert json.loads(text)["models"][0]["mode"] == "training"
    page, text = press("share", "", ticket, "", ticket, "h200", 1, "fp32", "training", "mps")
    assert "Together they do" in page
    assert [job["mode"] for job in json.loads(text)["jobs"]] == ["training", "training"]
    page, text = press("advise", "", ticket, "fp16", "", "", None, "usd", "on-demand", ["h200"], False, True)
    assert "2 by MPS" in text
    page, text = press("advise", "", ticket, "fp16", "5", "", None, "usd", "on-demand", ["l4"], False)
    assert "tiny.onnx: l4" in page
    assert json.loads(text)["choices"]
    page, text = press("serve", " hf:meta-llama/Llama-3.1-8B ", "h200", 64, 8, 1, "2", "", "paged")
    assert "fits on 2 × h200" in page
    assert json.loads(text)["gpus"] == 2
    page, text = press("predict", EXAMPLE, "", ["l4"], 8, "fp16", "inference", None, "")
    assert EXAMPLE in page
    text, problem = press("report", "", ticket, ["l4"], 1, "fp32", "inference", "3x16x16", "mps:30")
    assert problem == ""
    assert "</html>" in text


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("predict", ("", "", ["h200"], 1, "fp32", "inference", "", ""), "no model yet"),
        ("predict", ("/etc/passwd", "", ["h200"], 1, "fp32", "inference", "", ""), "No file of the server"),
        ("predict", ("timm:x", "", [], 1, "fp32", "inference", "", ""), "0 devices"),
        ("predict", ("timm:x", "", ["h200"] * (MOST_DEVICES + 1), 1, "fp32", "inference", "", ""), "9 devices"),
        ("predict", ("timm:x", "", ["h200"], -1, "fp32", "inference", "", ""), "batch_size"),
        ("predict", ("timm:x", "", 5, 1, "fp32", "inference", "", ""), "invalid request"),
        ("predict", ("timm:x", "", ["h200"]), "invalid request"),
        ("compare", ("timm:x", "", "", "", "h200", 1, "fp32", "inference"), "no model yet"),
        ("share", ("timm:x", "", "", "", "h200", 1, "fp32", "inference", "mps"), "no model yet"),
        ("serve", ("timm:x", "h200", 64, 8, 1, "", "", "paged"), "a language model is hf:ID"),
        ("serve", ("hf:meta-llama/Llama-3.1-8B", "h200", 0, 8, 1, "", "", "paged"), "input_tokens"),
        ("place", ("hf:meta-llama/Llama-3.1-8B", 64, 8, "paged", "soon", "", ""), "ttft_ms"),
        ("place", ("hf:meta-llama/Llama-3.1-8B", 10**6, 8, "paged", "", "", ""), "more than the context"),
        ("advise", ("timm:x", "", "fp16", "soon", "", "", "usd", "on-demand", [], False), "slo_ms"),
    ],
)
def test_an_error_is_shown_kindly(
    press: Callable[..., tuple[str, str]], name: str, inputs: tuple[Any, ...], message: str
) -> None:
    page, text = press(name, *inputs)
    assert "That did not work" in page
    assert message in page
    assert text == ""


def test_a_report_that_fails_is_no_file(press: Callable[..., tuple[str, str]]) -> None:
    text, problem = press("report", "/etc/passwd", "", ["h200"], 1, "fp32", "inference", "", "")
    assert text == ""
    assert "No file of the server" in problem


def test_fields() -> None:
    assert model_of(" timm:x ", "") == "timm:x"
    assert model_of("", "upload:1") == "upload:1"
    with pytest.raises(InputError, match="two models"):
        model_of("timm:x", "upload:1")
    assert question_fields("m", "h200", None, "fp32", "inference", "3x4 mask=5", " mps:30 ") == {
        "model": "m", "device": "h200", "batch_size": 1, "dtype": "fp32", "mode": "inference",
        "input_shape": ["3x4", "mask=5"], "slice": "mps:30",
    }  # fmt: skip


def test_places_for_a_language_model_are_asked_with_the_limits_that_were_given() -> None:
    asked = []

    class AskedTabs(Tabs):
        async def _ask(self, kind: str, values: dict[str, Any]) -> str:
            asked.append((kind, read_question(kind, values)))
            return json.dumps({"model": "m", "input_tokens": 64, "output_tokens": 8, "choices": [], "refused": []})

    page, text = asyncio.run(AskedTabs(None).place(" hf:a/b ", 64, 8, "vllm", "", "40", ""))  # type: ignore[arg-type]
    assert "no place keeps the limits" in page
    assert json.loads(text)["choices"] == []
    ((kind, question),) = asked
    assert (kind, question.model, question.tpot_ms, question.ttft_ms) == ("advise-llm", "hf:a/b", 40.0, None)
