"""Splitwise's table: one model tells what a launch takes, and the host's floor holds where GPUs are quick."""

from pathlib import Path

import pytest

from foretell.predictors.llm.engines import shipped_engines
from foretell.predictors.llm.kernels import shipped_kernels
from lab.judging.llm.splitwise import Setting, judge_splitwise, launch_ms, read_times

pyarrow = pytest.importorskip("pyarrow")


def row(model: str, gpu: str, tensor: int, prompt_time: float, token_time: float) -> dict[str, object]:
    return {"model": model, "hardware": gpu, "tensor_parallel": tensor, "prompt_size": 128, "batch_size": 1,
            "token_size": 128, "prompt_time": prompt_time, "token_time": token_time}  # fmt: skip


@pytest.fixture
def table(tmp_path: Path) -> Path:
    from pyarrow import parquet

    rows = [row("bloom-176b", gpu, 8, 91.0, 45.5) for gpu in ("a100-80gb", "h100-80gb", "h100-80gb-pcap")]
    rows += [row("llama2-70b", "h100-80gb", tensor, time, 48.0) for tensor in (4, 8) for time in (90.0, 102.0)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "splitwise.parquet")
    return tmp_path / "splitwise.parquet"


def test_equal_settings_are_averaged_and_capped_machines_left_out(table: Path) -> None:
    assert read_times(table, "llama2-70b")[Setting("h100-80gb", 4, 128, 1, 128)] == pytest.approx((96.0, 48.0))
    assert {setting.gpu for setting in read_times(table, "bloom-176b")} == {"a100-80gb", "h100-80gb"}


def test_a_step_takes_as_long_as_its_launches_where_the_gpus_are_quicker(table: Path) -> None:
    # 13 launches in each of 70 layers
    assert launch_ms(read_times(table, "bloom-176b"))["h100-80gb"] == pytest.approx((0.1, 0.05))
    judged = judge_splitwise(table, shipped_kernels(), shipped_engines()).rows["h100-80gb, tp8"]
    # 12 launches in each of 80 layers are 48 ms a token and 96 ms a prompt
    assert (judged["token"], judged["prompt"]) == pytest.approx((0.0, 0.0), abs=1e-6)
    assert judged["token by kernels"] > 0.5
