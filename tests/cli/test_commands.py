"""The commands: what they print, and where."""

import csv
import importlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

from foretell.cli.main import main
from foretell.testing import tiny_onnx


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FORETELL_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "tiny.onnx"
    path.write_bytes(tiny_onnx().SerializeToString())
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as ended:
        main(list(argv))
    shown = capsys.readouterr()
    assert ended.value.code == code, shown.err
    return shown.out if code == 0 else shown.err


def test_predict_prints_one_object(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    found: dict[str, Any] = json.loads(
        run(capsys, "predict", model, "--device", "a100", "-b", "8", "--dtype", "fp16", "--json")
    )
    assert found["model"] == model
    assert (found["batch_size"], found["dtype"], found["mode"]) == (8, "fp16", "inference")
    for metric in ("latency_ms", "memory_mib", "energy_j", "power_w"):
        assert 0 < found[metric]["low"] <= found[metric]["value"] <= found[metric]["high"]
    assert found["coverage"] == 1.0


def test_predict_shows_a_box(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, "predict", model, "--mode", "training", "--optimizer", "adamw")
    for word in ("latency", "peak memory", "adamw", "Conv"):
        assert word in shown


def test_inspect_sums_up(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run(capsys, "inspect", model, "--json", "-b", "2", "--by", "node"))
    assert (found["parameters"], found["batch_size"], found["unknown_operators"]) == (248, 2, {})
    assert (
        found["macs"]
        == sum(v["macs"] for v in found["by_operator"].values())
        == sum(n["macs"] for n in found["by_node"])
    )
    assert found["nodes"] == len(found["by_node"]) == 5
    training = json.loads(run(capsys, "inspect", model, "--json", "--mode", "training"))["training"]
    assert training["total"]["macs"] > training["forward"]["macs"]


@pytest.mark.parametrize("by", ["operator", "module", "node"])
def test_inspect_as_csv(model: str, capsys: pytest.CaptureFixture[str], by: str) -> None:
    rows = list(csv.DictReader(io.StringIO(run(capsys, "inspect", model, "--csv", "--by", by))))
    assert sum(int(r["macs"]) for r in rows if "." not in r["name"]) == 42368
    assert {"name", "operator", "count", "parameters", "bytes_read"} <= set(rows[0])


@pytest.mark.parametrize(
    "more",
    [[], ["--by", "operator"], ["--by", "module"], ["--by", "node"], ["--mode", "training"], ["--dtype", "bf16"]],
)
def test_inspect_as_tables(model: str, capsys: pytest.CaptureFixture[str], more: list[str]) -> None:
    shown = run(capsys, "inspect", model, *more)
    assert "248 parameters" in shown


def test_devices(capsys: pytest.CaptureFixture[str]) -> None:
    assert "h200" in run(capsys, "devices")
    assert "mig:1g.18gb" in run(capsys, "devices", "h200")
    assert any(d["id"] == "h200" for d in json.loads(run(capsys, "devices", "--json")))


def test_doctor_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert "onnx" in run(capsys, "doctor")
    assert "frontends" in json.loads(run(capsys, "doctor", "--json"))
    assert run(capsys, "--version").startswith("foretell ")
    assert "predict" in run(capsys, "--help")


def test_debug_shows_a_traceback_wherever_it_stands(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["--debug", "predict", model, "--device", "h20"], ["predict", model, "--device", "h20", "--debug"]):
        shown = run(capsys, *argv, code=2)
        assert "Traceback" in shown
        assert shown.splitlines()[-1].startswith("foretell: Unknown device")


def test_a_bug_of_ours_is_one_line_too(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oops")

    workflow = importlib.import_module("foretell.workflows.predict")
    monkeypatch.setattr(workflow, "predict", broken)
    assert run(capsys, "predict", model, code=1).count("\n") == 1
    monkeypatch.setattr(workflow, "predict", lambda *_, **__: (_ for _ in ()).throw(MemoryError))
    assert "memory" in run(capsys, "predict", model, code=2)


def test_the_second_call_reads_the_cache(
    model: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(capsys, "inspect", model, "--json")
    assert len(list((tmp_path / "cache").rglob("*.fgraph"))) == 1
    monkeypatch.setattr(
        "foretell.frontends.onnx_file.graph_from_proto", lambda *_: pytest.fail("it was converted again")
    )
    assert run(capsys, "inspect", model, "--json") == first


def test_no_cache_keeps_nothing(model: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run(capsys, "inspect", model, "--no-cache")
    assert not (tmp_path / "cache").exists()
