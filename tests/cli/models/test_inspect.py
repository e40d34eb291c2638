"""``foretell inspect``."""

import csv
import io
import json

import pytest

from command_line import run


def test_inspect_sums_up(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    output = json.loads(run(capsys, "inspect", model, "--json", "-b", "2", "--by", "node"))
    assert (output["parameters"], output["batch_size"], output["unknown_operators"]) == (248, 2, {})
    assert (
        output["macs"]
        == sum(v["macs"] for v in output["by_operator"].values())
        == sum(n["macs"] for n in output["by_node"])
    )
    assert output["nodes"] == len(output["by_node"]) == 5
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
