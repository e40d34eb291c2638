"""How a CPU ran a model: a store tells runs apart."""

import pytest

from foretell.devices.cpu_runs import ONE_THREAD, OTHERS, CpuRun, runs_of_campaigns

TWO = CpuRun("eager", 2)


@pytest.mark.parametrize(
    ("row", "run"),
    [
        ({"runtime": "cpu", "threads": 1}, ONE_THREAD),
        ({"runtime": "cpu", "threads": None}, ONE_THREAD),
        ({"runtime": "cuda-graph"}, ONE_THREAD),
        ({"runtime": "cpu", "threads": 2}, TWO),
        ({"runtime": "onnxruntime", "threads": 1}, CpuRun("onnxruntime", 1)),
        ({"runtime": "onnxruntime", "threads": 2}, CpuRun("onnxruntime", 2)),
    ],
)
def test_a_row_says_its_run(row, run):
    assert CpuRun.of(row) == run
    assert [one for one in (ONE_THREAD, *OTHERS) if one.has(row)] == [run]


def test_a_compiled_model_is_of_no_run_that_is_fitted():
    assert not [run for run in (ONE_THREAD, *OTHERS) if run.has({"runtime": "compiled", "threads": 1})]


def test_runs_have_names_and_files_of_their_own():
    assert [str(run) for run in (ONE_THREAD, *OTHERS)] == [
        "eager PyTorch on one thread",
        "eager PyTorch on two threads",
        "ONNX Runtime on one thread",
        "ONNX Runtime on two threads",
    ]
    assert len({run.file for run in OTHERS}) == len(OTHERS)


def test_campaigns_without_a_name_say_nothing():
    rows = [{"campaign_id": "a", "runtime": "cpu", "threads": 2}, {"campaign_id": None, "threads": 2}]
    assert runs_of_campaigns(rows) == {"a": TWO}
