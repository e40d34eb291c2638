"""Answers are what ``--json`` of the commands prints; only ONNX and .pt2 are read, whatever the name says."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from command_line import run
from foretell.errors import ForetellError, ModelError
from foretell.graph.ir import serde
from foretell.testing import tiny_graph
from foretell.web import answers, graphs
from foretell.web.answers import answer, answer_together, check_upload
from foretell.web.questions import EXAMPLE, read_question
from foretell.workflows.workload import load_graph


@pytest.fixture
def model(tmp_path: Path, onnx_bytes: bytes, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FORETELL_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "tiny.onnx"
    path.write_bytes(onnx_bytes)
    return str(path)


def ask(kind: str, model: str, **values: Any) -> str:
    files = {"model": model} | ({"other": model} if kind in ("compare", "share") else {})
    question = read_question(kind, {**dict.fromkeys(files, "upload:x"), **values})
    return answer(kind, question.model_dump(), files)


@pytest.mark.parametrize(
    ("kind", "argv", "values"),
    [
        ("predict", ["--device", "a100", "-b", "8", "--dtype", "fp16"],
         {"device": "a100", "batch_size": 8, "dtype": "fp16"}),
        ("predict", ["--slice", "mps:30", "-i", "3x16x16"], {"slice": "mps:30", "input_shape": ["3x16x16"]}),
        ("compare", ["--device", "l4"], {"device": "l4"}),
        ("share", ["-b", "8", "--dtypes", "fp16", "-i", "3x16x16"],
         {"batch_size": 8, "dtype": "fp16", "input_shape": ["3x16x16"]}),
        ("share", ["--method", "time-slicing", "-d", "a100"], {"method": "time-slicing", "device": "a100"}),
        ("advise", ["-d", "h200", "--max-batch", "2", "--shared"],
         {"devices": ["h200"], "max_batch": 2, "shared": True}),
        ("sweep", ["-d", "h200,l4", "-b", "1,4", "--slices", "whole,mps:50"],
         {"devices": ["h200", "l4"], "batch_sizes": [1, 4], "slices": ["whole", "mps:50"]}),
        ("advise", ["-d", "h200,l4", "--slo-ms", "5", "--rate", "100", "--max-batch", "4"],
         {"devices": ["h200", "l4"], "slo_ms": 5, "rate": 100, "max_batch": 4}),
        ("advise", ["-d", "h200,l4", "--train", "--steps", "1000", "--dtype", "fp32"],
         {"devices": ["h200", "l4"], "train": True, "steps": 1000, "dtype": "fp32"}),
    ],
)  # fmt: skip
def test_the_same_as_the_command_prints(
    kind: str, argv: list[str], values: dict[str, Any], model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [model, model] if kind in ("compare", "share") else [model]
    printed = json.loads(run(capsys, kind, *models, *argv, "--json"))
    if kind == "predict":
        printed["model"] = "tiny.onnx"  # where an upload lies is no one's business
    assert json.loads(ask(kind, model, **values)) == near(printed)


def near(value: Any) -> Any:
    """The same with room for the last digits: networks compute in single precision, and where arrays lie matters."""
    if isinstance(value, dict):
        return {name: near(item) for name, item in value.items()}
    if isinstance(value, list):
        return [near(item) for item in value]
    return pytest.approx(value, rel=1e-5) if isinstance(value, float) else value


def test_a_report_names_the_file_and_not_its_folder(model: str) -> None:
    page = ask("report", model, device="l4")
    assert page.rstrip().endswith("</html>")
    assert "tiny.onnx" in page
    assert str(Path(model).parent) not in page


def test_a_spec_beside_an_upload_is_converted_once(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cached: list[tuple[str, bool]] = []

    def fake(source: str, *, use_cache: bool, **options: Any) -> Any:
        cached.append((source, use_cache))
        return load_graph(model, use_cache=False, **options)

    monkeypatch.setattr(graphs, "load_graph", fake)
    fields = read_question("compare", {"model": "upload:x", "other": "timm:never-read"}).model_dump()
    answer("compare", fields, {"model": model})
    assert cached == [(model, False), ("timm:never-read", True)]


def message(kind: str, model: str, **values: Any) -> dict[str, Any]:
    files = {"model": model} | ({"other": model} if kind == "compare" else {})
    question = read_question(kind, {**dict.fromkeys(files, "upload:x"), **values})
    return {"kind": kind, "fields": question.model_dump(), "files": files}


def test_answers_together_are_those_that_each_gets_alone(model: str) -> None:
    messages = [
        message("predict", model, batch_size=3, device="l4"), message("predict", "/absent/file.onnx"),
        message("compare", model, dtype="fp16"), message("predict", model, device="h2000"),
        message("predict", model, latency_limit_ms=5.0), message("predict", model, mode="training", optimizer="sgd"),
        message("sweep", model),
    ]  # fmt: skip
    together = list(answer_together(messages))
    for asked, found in zip(messages, together, strict=True):
        if asked["kind"] == "sweep" or asked["fields"].get("latency_limit_ms"):
            assert found is None  # asked alone
        elif isinstance(found, ForetellError):
            with pytest.raises(ForetellError, match=re.escape(str(found))):
                answer(asked["kind"], asked["fields"], asked["files"])
        else:
            assert found is not None
            alone = json.loads(answer(asked["kind"], asked["fields"], asked["files"]))
            assert _rounded(json.loads(found)) == _rounded(alone)
    assert [type(found).__name__ for found in together] == [
        "str", "ModelError", "str", "DeviceError", "NoneType", "str", "NoneType",
    ]  # fmt: skip


def _rounded(value: Any) -> Any:
    """The network is asked about more rows at once, which moves the last digits."""
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def test_an_upload_leaves_nothing_in_the_cache(model: str, tmp_path: Path) -> None:
    ask("predict", model)
    assert not (tmp_path / "cache").exists()


def test_a_file_is_what_it_holds_and_not_what_it_is_called(tmp_path: Path) -> None:
    graph = tmp_path / "model.onnx"
    serde.save(tiny_graph(), graph)
    with pytest.raises(ModelError, match="'graph'"):
        check_upload(str(graph))
    pickled = tmp_path / "pickle.onnx"
    pickled.write_bytes(b"\x80\x04.")
    with pytest.raises(ModelError, match="never opened"):
        check_upload(str(pickled))


def test_the_example_is_the_resnet_of_the_examples() -> None:
    """Its graph is in the package, so that the page has an answer without PyTorch."""
    shipped = load_graph(str(answers._EXAMPLE_FILE))
    assert shipped.hash == load_graph(str(Path(__file__).parents[2] / "examples" / "resnet50.onnx")).hash
    fields = read_question("predict", {"model": EXAMPLE, "batch_size": 8, "dtype": "fp16"}).model_dump()
    assert json.loads(answer("predict", fields, {}))["model"] == EXAMPLE


def test_fit_and_llm_answer_as_their_commands_do() -> None:
    fields = read_question("fit", {"model": EXAMPLE, "device": "t4", "batch_size": 100_000}).model_dump()
    answered = json.loads(answer("fit", fields, {}))
    assert (answered["fits"], answered["model"]) == ("no", EXAMPLE)
    assert 0 < answered["largest_batch"] < 100_000
    fields = read_question(
        "llm", {"model": "hf:meta-llama/Llama-3.1-8B", "input_tokens": 64, "output_tokens": 8}
    ).model_dump()
    assert json.loads(answer("llm", fields, {}))["fits"] is True
    fields = read_question(
        "advise-llm",
        {"model": "hf:meta-llama/Llama-3.1-8B", "input_tokens": 64, "output_tokens": 8, "devices": ["l40s"],
         "weights": ["fp8"]},
    ).model_dump()  # fmt: skip
    assert json.loads(answer("advise-llm", fields, {}))["choices"][0]["place"] == "1 × l40s, fp8"
