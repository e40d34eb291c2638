"""Children that hang, die or answer, and one real measurement."""

import sys
from pathlib import Path

import pytest

from foretell.profiling.campaign.plan import Measuring
from foretell.profiling.isolation import count_alone, measure_alone
from foretell.profiling.single import Request

CHILD = (sys.executable, str(Path(__file__).parents[1] / "fakes" / "single_child.py"))


def test_a_child_answers_in_its_environment():
    stages = []
    result = measure_alone(
        Request("fine", batch_size=3), timeout_s=600, environment={"SLICE": "20"}, on_stage=stages.append, command=CHILD
    )
    assert (result["values"]["batch_size"], result["values"]["slice"]) == (3, "20")
    assert stages == ["building the model"]


@pytest.mark.parametrize(
    ("model", "status", "words"),
    [
        ("hang", "timeout", "Nothing came back in 5 s while building the model"),
        ("abort", "crash", "was killed by SIGABRT while building the model"),
        ("killed", "oom", "ran out of memory"),
        ("exit", "crash", "exited with code 1 while building the model. ImportError: no such library"),
    ],
)
def test_what_happens_to_a_child_is_a_status(model, status, words):
    result = measure_alone(Request(model), timeout_s=5 if model == "hang" else 600, command=CHILD)
    assert result["status"] == status
    assert words in result["error"]
    assert result["facts"]["host"]


def test_a_child_that_takes_too_much_memory_is_ended():
    result = measure_alone(Request("grow"), timeout_s=600, memory_limit_gib=0.1, command=CHILD)
    assert result["status"] == "oom"
    assert "more than 0.1 GiB of memory while building the model" in result["error"]
    assert measure_alone(Request("fine"), timeout_s=600, memory_limit_gib=1, command=CHILD)["status"] == "ok"


def test_occupancy_is_weighted_by_duration():
    result = count_alone(Request("counted"), timeout_s=600, ncu=CHILD)
    assert result["values"] == {"occupancy_mean": 40.0, "occupancy_weighted": 35.0}


def test_a_profiler_without_counts_is_reported():
    result = count_alone(Request("fine"), timeout_s=600, ncu=CHILD)
    assert result["status"] == "run_error"
    assert "no kernel" in result["error"]


def test_the_last_words_of_a_child_that_dies_are_its_own(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "net.py").write_text("import os\n\ndef build():\n    os.abort()\n")
    request = Request(f"{tmp_path}/net.py:build", builder="foretell.workflows.measure.foreign_models:build_python")
    result = measure_alone(request, timeout_s=600)
    assert result["status"] == "crash"
    assert result["error"].startswith("The process was killed by SIGABRT while building the model.")
    assert "Warning" not in result["error"]


def test_the_real_child_measures():
    pytest.importorskip("torch")
    quick = Measuring(warmups=1, replays=3, tries=1)
    result = measure_alone(Request("synthetic:lenet?act=tanh&scale=1", measuring=quick), timeout_s=600)
    assert result["status"] == "ok", result["error"]
    assert result["values"]["latency_ms"] > 0
    assert result["facts"]["libraries"]["torch"]
