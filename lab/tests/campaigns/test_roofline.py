"""The roofline campaign without a GPU: ncu's output by its documented layout, what is tried, what is written."""

import json
import math
import os
import sys
from pathlib import Path

import pytest

from foretell.errors import MeasurementError
from foretell.profiling.trackers.ncu import MARKER, call_name
from foretell.profiling.workload import Workload
from lab.campaigns import roofline
from lab.campaigns.roofline import (
    GMMA,
    HFMA2,
    HMMA,
    LEVELS,
    METRICS,
    NETWORKS,
    PROBES,
    TIME,
    Ran,
    Results,
    known_metrics,
    metric_sets,
    options,
    read_run,
    run,
)

HEADER = (
    '"ID","Process ID","Process Name","Host Name",'
    '"thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg",'
    '"Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","Section Name","Metric Name",'
    '"Metric Unit","Metric Value"'
)
UNITS = {TIME: "ns", **dict.fromkeys(LEVELS.values(), "byte"), HMMA: "inst"}


PRINTED = (TIME, *LEVELS.values(), HMMA)


def printed(kernels):
    """What ncu prints of kernels: name, call or None, and a number for each metric."""
    lines = ["==PROF== Connected to process 1 (python)\n", HEADER + "\n"]
    for number, (name, call, values) in enumerate(kernels):
        within = f'1  ""<default domain>:{call_name(call)}:none:none:none""' if call is not None else ""
        start = f'"{number}","1","python","127.0.0.1","{within}","{name}","1","7","(128, 1, 1)","(1, 1, 1)","0","9.0"'
        for metric, value in zip(PRINTED, values, strict=True):
            shown = "n/a" if value is None else f"{value:,}"
            lines.append(f'{start},"Command line profiler metrics","{metric}","{UNITS.get(metric, "")}","{shown}"\n')
    return lines


MARK = (MARKER, None, (9, 1, 1, 1, 0))
KERNELS = [MARK, ("gemm", 0, (2000, 100, 3000, 70, 64)), ("relu", 1, (1000, 10, 20, math.nan, None)), MARK]


def finished(folder, calls, kernels=KERNELS, record=None):
    events = [{"event": "pid", "pid": 1}, {"event": "open", "id": "w"}, {"event": "close", "id": "w", "calls": calls}]
    events += [record] if record else []
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
    (folder / "ncu.csv").write_text("".join(printed(kernels)), encoding="utf-8")


def test_kernels_have_bytes_microseconds_and_how_often_they_ran(tmp_path):
    finished(tmp_path, [0, 1, 0, 0])
    (gemm, three), (relu, one) = read_run(tmp_path).kernels["w"]
    assert (gemm.name, three, relu.name, one) == ("gemm", 3, "relu", 1)
    assert gemm.values == {
        TIME: 2.0,
        "l1tex__t_bytes.sum": 100,
        "lts__t_bytes.sum": 3000,
        "dram__bytes.sum": 70,
        HMMA: 64,
    }
    assert set(relu.values) == {TIME, "l1tex__t_bytes.sum", "lts__t_bytes.sum"}, "ncu could not count the others"


def test_a_kernel_outside_of_operators_counts_once_and_not_where_operators_repeat(tmp_path):
    kernels = [MARK, ("loop", None, (2000, 1, 1, 1, 1)), MARK]
    finished(tmp_path, [], kernels)
    assert [(kernel.name, times) for kernel, times in read_run(tmp_path).kernels["w"]] == [("loop", 1)]
    finished(tmp_path, [0, 0], kernels)
    ran = read_run(tmp_path)
    assert ran.kernels == {}
    assert "range" in ran.failures["w"]


def test_what_the_worker_refused_is_told(tmp_path):
    record = {"event": "record", "id": "other", "status": "oom", "error": "out of memory"}
    finished(tmp_path, [0, 1], record=record)
    assert read_run(tmp_path).failures == {"other": "oom: out of memory"}


def test_only_metrics_of_the_chip_are_asked_for_first():
    known = {GMMA.partition(".")[0], "unrelated__metric"}
    first, *others = metric_sets(known)
    assert first == (TIME, *LEVELS.values(), GMMA)
    assert others == list(METRICS[1:])
    assert metric_sets(set())[0] == METRICS[0], "where ncu does not tell, everything is tried"


def test_ncu_is_asked_for_the_metrics_of_the_chip(tmp_path):
    ncu = tmp_path / "ncu"
    ncu.write_text(f'#!/bin/sh\necho "Device GH100"\necho "{HFMA2.removesuffix(".sum")}   Counter   # of"\n', "utf-8")
    ncu.chmod(0o755)
    assert known_metrics(str(ncu)) == {HFMA2.removesuffix(".sum")}
    assert known_metrics(str(tmp_path / "absent")) == set()


def test_clocks_are_left_alone():
    words = options((TIME,), "all")
    assert words[words.index("--clock-control") + 1] == "none"
    assert words[words.index("--metrics") + 1] == TIME


def test_the_file_has_a_row_for_each_kernel_or_the_reason(tmp_path):
    finished(tmp_path, [0, 1, 0])
    workload = Workload("timm:a", 2, (3, 8, 8), "fp16")
    ran = read_run(tmp_path)
    results = Results((TIME, HMMA), {"device": "h200"})
    assert results.add("net", workload, Ran({workload.id: ran.kernels["w"]}, {}, ""))
    assert not results.add("late", Workload("timm:b", 2, (3, 8, 8), "fp16"), Ran({}, {}, ""))
    results.write(tmp_path / "deep" / "file.json")
    values = json.loads((tmp_path / "deep" / "file.json").read_text(encoding="utf-8"))
    assert values["names"] == ["gemm", "relu"]
    assert values["workloads"][0]["kernels"] == [[0, 2, 2.0, 64], [1, 1, 1.0, None]]
    assert "the time was over" in values["workloads"][1]["error"]


FAKE_NCU = """
import json, subprocess, sys
from pathlib import Path
arguments = sys.argv[1:]
if "--query-metrics" in arguments:
    sys.exit(1)
metrics = arguments[arguments.index("--metrics") + 1].split(",")
log = Path(arguments[arguments.index("--log-file") + 1])
if len(metrics) > {most}:
    log.write_text("==ERROR== Failed to find metric\\n")
    sys.exit(1)
program = arguments[arguments.index("--log-file") + 2 :]
code = subprocess.run(program, check=False).returncode
events = [json.loads(l) for l in Path(json.loads(Path(program[-1]).read_text())["events"]).read_text().splitlines()]
lines = [{header!r}]
number = 0
for event in events:
    if event["event"] == "close":
        calls = sorted(set(event["calls"]))
        for name, call in [("nextafter", None), *[("kernel", call) for call in calls], ("nextafter", None)]:
            number += 1
            within = "" if call is None else f'1  ""<default domain>:foretell-call-{{call}}:none:none:none""'
            for metric in metrics:
                row = f'"{{number}}","1","python","h","{{within}}","{{name}}","1","7","(1, 1, 1)","(1, 1, 1)","0","9.0"'
                lines.append(row + f',"x","{{metric}}","","5"')
log.write_text("\\n".join(lines) + "\\n")
sys.exit(code)
"""


@pytest.fixture
def fake_ncu(tmp_path, monkeypatch):
    def make(most):
        tools = tmp_path / "tools"
        tools.mkdir()
        (tools / "fake.py").write_text(FAKE_NCU.format(most=most, header=HEADER), encoding="utf-8")
        (tools / "ncu").write_text(f'#!/bin/sh\nexec {sys.executable} {tools}/fake.py "$@"\n', encoding="utf-8")
        (tools / "ncu").chmod(0o755)
        monkeypatch.setenv("PATH", str(tools), prepend=os.pathsep)
        monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]), prepend=os.pathsep)

    return make


SMALL = (("tiny", "synthetic:mlp?act=relu&widths=8-8-4", (8,), 2), ("absent", "lab:nothing", (8,), 2))


def test_shorter_lists_are_tried_and_networks_counted(fake_ncu, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    fake_ncu(12)
    monkeypatch.setattr(roofline, "PROBES", (Workload("synthetic:mlp?act=relu&widths=8-4", 2, (8,), "fp32"),))
    monkeypatch.setattr(roofline, "NETWORKS", SMALL)
    run(tmp_path / "out.json", 110.0, ("fp32",), device="cpu")
    values = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert values["metrics"] == list(METRICS[2]), "the first that counts"
    _, tiny, absent = values["workloads"]
    assert tiny["network"] == "tiny"
    assert sum(times for _, times, *_ in tiny["kernels"]) >= 3
    assert "build_error" in absent["error"]


def test_in_brief_nothing_is_probed_and_operations_are_not_counted(fake_ncu, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    fake_ncu(12)
    monkeypatch.setattr(roofline, "NETWORKS", SMALL[:1])
    run(tmp_path / "out.json", 110.0, ("fp32",), brief=True, device="cpu")
    values = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert set(values["metrics"]) == {TIME, *LEVELS.values(), HMMA, GMMA, HFMA2, roofline.BUSY}
    (tiny,) = values["workloads"]
    assert len(tiny["kernels"]) >= 3


def test_without_counters_it_stops_and_says_why(fake_ncu, tmp_path):
    fake_ncu(0)
    with pytest.raises(MeasurementError, match="Failed to find metric"):
        run(tmp_path / "out.json", 110.0, device="cpu")


def test_ten_networks_and_work_that_is_known():
    assert len({name for name, *_ in NETWORKS}) == 10
    assert {workload.spec for workload in PROBES} == {"lab:product", "lab:half-loop", "lab:load-loop"}
