"""Short answers of the tools."""

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

pytest.importorskip("mcp")

import foretell
from foretell.errors import InputError, ModelError
from foretell.testing import tiny_onnx
from foretell.web.mcp.answers import MOST_CHARACTERS, answer, shortened
from foretell.web.mcp.tools import read_arguments


@pytest.fixture
def model(tmp_path: Path) -> str:
    file = tmp_path / "net.onnx"
    onnx.save(tiny_onnx(), file)
    return str(file)


def call(tool: str, **values: Any) -> dict[str, Any]:
    fields = read_arguments(tool, values).model_dump()
    if "input_shape" in fields:
        fields["input_shape"] = fields["input_shape"] or None
    if tool != "devices":
        fields["use_cache"] = False
    text = answer(tool, fields)
    assert len(text) <= MOST_CHARACTERS
    result: dict[str, Any] = json.loads(text)
    return result


def test_a_prediction_is_that_of_the_function(model: str) -> None:
    found, true = call("predict", model=model, batch_size=8), foretell.predict(model, batch_size=8, dtype="fp16")
    assert found["model"] == "net.onnx"  # without its folder
    assert true.latency_ms is not None
    assert found["latency_ms"]["value"] == pytest.approx(true.latency_ms.value, rel=1e-3)
    assert found["latency_ms"]["low"] < found["latency_ms"]["value"] < found["latency_ms"]["high"]
    assert found["memory_capacity_mib"] > found["device_memory_mib"]["value"]
    assert found["extrapolated"] is False
    assert found["fits"] == "yes"
    onnx.save(tiny_onnx(size=128), model)
    assert call("predict", model=model, batch_size=1_000_000, device="t4")["fits"] == "no"


def test_the_other_tools_answer(model: str) -> None:
    assert call("fit", model=model, device="l4")["fits"] == "yes"
    advised = call("advise", model=model, devices=["l4", "t4"], mig=False)
    assert 1 <= len(advised["best"]) <= 5
    assert advised["best"][0]["usd_per_million"]["low"] < advised["best"][0]["usd_per_million"]["high"]
    improved = call("improve", model=model, by="throughput")
    assert improved["changes"][0]["gain"]["value"] > 1
    assert {"accuracy", "how"} <= set(improved["changes"][0])
    shared = call("share", of=[model, model], batch_sizes=[8])
    assert [job["model"] for job in shared["jobs"]] == ["net.onnx", "net.onnx"]
    assert call("llm", model="meta-llama/Llama-3.1-8B")["fits"] is True
    assert call("inspect", model=model)["by_operator"]["Conv"]["count"] == 1


def test_devices_are_listed_and_described() -> None:
    every, amd, one = call("devices"), call("devices", maker="amd"), call("devices", name="A100")
    assert every["count"] == len(foretell.devices())
    assert set(amd["devices"]) == {"AMD"}
    assert one["device"] == "a100-sxm-40gb"
    with pytest.raises(InputError, match="Unknown maker 'nvdia'"):
        call("devices", maker="nvdia")


def test_a_file_that_is_something_else_is_not_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    file = tmp_path / "script.pt2"
    with pytest.warns(DeprecationWarning, match="torch.jit.script"):
        torch.jit.script(torch.nn.Linear(2, 2)).save(str(file))
    with pytest.raises(ModelError, match="holds a model of the kind 'torchscript'"):
        call("predict", model=str(file))


def test_texts_and_numbers_are_cut() -> None:
    assert len(shortened("x" * 10_000)) == 300
    assert shortened([1.0 / 3, {"a": (2.0, True, None)}]) == [0.3333, {"a": [2.0, True, None]}]
