"""Trees of the thesis' chapter 6: folds keep architectures together, and what a feature decides is found."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from lab.papers.llm_trees import (
    FITS,
    FOLDS,
    HARDWARE_FEATURES,
    MODEL_FEATURES,
    Forward,
    _forward,
    _hardware,
    folds,
    judge,
    judge_bits,
    read_encoders,
    read_splitwise,
)


def forwards(count: int = 120) -> list[Forward]:
    random = np.random.default_rng(0)
    made = []
    for number in range(count):
        features = dict.fromkeys(MODEL_FEATURES, 1.0) | {"MACs": float(random.uniform(1e9, 1e12)), "batch size": 4.0}
        truths = {"throughput": 1e15 / features["MACs"], "memory": 100.0, "energy": float("nan")}
        made.append(Forward(features, truths, f"family {number % 12}"))
    return made


def test_all_rows_of_an_architecture_are_in_one_fold() -> None:
    rows = forwards()
    fold = folds(rows, 1, by_family=True)
    assert set(fold) == set(range(FOLDS))
    for family in {row.family for row in rows}:
        assert len({int(number) for number, row in zip(fold, rows, strict=True) if row.family == family}) == 1
    assert not np.array_equal(folds(rows, 1, by_family=False), folds(rows, 2, by_family=False))


@pytest.mark.parametrize("name", list(FITS))
def test_a_feature_that_decides_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.papers.llm_trees.ROUNDS", 80)
    told = judge(forwards(), ("MACs",), "throughput", FITS[name], by_family=True, seeds=1)
    blind = judge(forwards(), ("batch size",), "throughput", FITS["boosted trees"], by_family=True, seeds=1)
    assert told["MAPE"] < 0.5 * blind["MAPE"]
    assert told["τ"] > 0.7


def test_a_measured_row_has_fourteen_features() -> None:
    row = {"spec": "hf:bert?hidden_size=256&num_attention_heads=4&num_hidden_layers=3&vocab_size=800", "dtype": "fp16",
           "batch_size": 8, "input_shape": "128", "latency_ms": 2.0, "memory_mib": 64.0, "energy_j": 4.0,
           "family": "hf-bert"}  # fmt: skip
    totals = {"nodes": 10, "edges": 20, "MACs": 100, "parameters": 50, "memory": 400}
    forward = _forward(row, totals)
    assert set(forward.features) == set(MODEL_FEATURES)
    assert (forward.features["layers"], forward.features["MACs"], forward.family) == (3.0, 800, "bert")
    assert forward.truths == {"throughput": 4000.0, "memory": 64.0, "energy": 0.5}


def test_hardware_features_are_facts_of_the_catalogue(tmp_path: Path) -> None:
    assert set(_hardware("h100-sxm")) == set(HARDWARE_FEATURES)
    assert _hardware("h100-sxm")["SMs"] == 132
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    same = {"model": "llama2-70b", "tensor_parallel": 8, "prompt_size": 512, "batch_size": 2}
    gpus = ("a100-80gb", "h100-80gb", "h100-80gb-pcap")
    rows = [{**same, "hardware": gpu, "prompt_time": ms} for gpu in gpus for ms in (90.0, 110.0)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "t.parquet")
    read = read_splitwise(tmp_path / "t.parquet")
    assert [row.truths["throughput"] for row in read] == [20.0, 20.0]
    assert {row.features["SMs"] for row in read} == {108, 132}


def test_the_grid_of_encoders_is_read_with_its_bits_and_judged_by_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    totals = {"nodes": 10, "edges": 20, "MACs": 10**9, "parameters": 10**6, "memory": 10**7}
    lines = [
        {"spec": f"hf:bert?hidden_size=256&num_hidden_layers={layers}", "batch_size": 4, "tokens": 64, "dtype": dtype,
         "latency_ms": 2.0 * layers, "memory_mib": 100.0, **totals}
        for dtype in ("fp32", "fp16", "nf4") for layers in range(1, 5)
    ]  # fmt: skip
    folder = tmp_path / "h200" / "one"
    folder.mkdir(parents=True)
    text = "\n".join(json.dumps(line) for line in [*lines, {"spec": "hf:bert", "error": "refused"}])
    (folder / "encoders.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    grid = read_encoders(tmp_path)
    assert [row.features["bits"] for row in grid[::4]] == [32, 16, 4]
    assert (grid[0].family, grid[0].truths["throughput"]) == ("bert", 2000.0)
    monkeypatch.setattr("lab.papers.llm_trees.ROUNDS", 5)
    table = judge_bits(forwards(40), grid, seeds=1)
    assert [name for name in table.rows if name.startswith("throughput")] == [
        "throughput, 4 bits", "throughput, 16 bits", "throughput, 32 bits",
    ]  # fmt: skip
    assert all(cells["count"] == 4 for cells in table.rows.values())
