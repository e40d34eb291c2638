"""The hierarchical roofline from a file of counters: intensities, limits, shares, what the probes decide."""

import json
import math
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from foretell.devices.ceilings import Ceilings
from foretell.errors import DataError
from foretell.profiling.jit_kernels import half_flops, load_bytes
from lab.campaigns.roofline import BUSY, GMMA, HFMA2, HMMA, LEVELS, OPS, SASS, TIME, VERSION
from lab.papers.downscaling import hierarchy
from lab.papers.downscaling.hierarchy import (
    PRODUCT_FLOPS,
    checks_of,
    draw,
    graph_flops,
    lines,
    read_all,
    read_counted,
    row_of,
)

METRICS = (TIME, *LEVELS.values(), HMMA, GMMA, HFMA2, BUSY, OPS[1], OPS[2], *SASS)
CEILINGS = Ceilings("h200", "H200", "2026-01-01", "s", 4000.0, 8000.0, {"fp16": 800.0, "tf32": 400.0, "fp32": 50.0})
HFMA = "sm__sass_thread_inst_executed_op_hfma_pred_on.sum"


def counted(name, times=1, **values):
    """A row of the file: a kernel's number, how often it ran, and the values of all metrics."""
    return [name, times, *(values.get(metric, 0.0) for metric in METRICS)]


def workload(network, spec, kernels, dtype="fp16", **more):
    row = {"network": network, "spec": spec, "batch_size": 2, "input_shape": [3, 8, 8], "dtype": dtype}
    return row | {"kernels": kernels} | more


# 1,000 µs in a product, 2 × 500 µs in something that only moves bytes
GEMM = counted(
    0, **{TIME: 1000.0, "l1tex__t_bytes.sum": 1e9, "lts__t_bytes.sum": 2e9, "dram__bytes.sum": 5e8, GMMA: 7.0,
          BUSY: 80.0, OPS[1]: 4e11}
)  # fmt: skip
RELU = counted(
    1, 2, **{TIME: 500.0, "l1tex__t_bytes.sum": 2e9, "lts__t_bytes.sum": 2e9, "dram__bytes.sum": 2e9, HMMA: 5.0,
             HFMA2: 5.0, HFMA: 1e9}
)  # fmt: skip
NAMES = ["nvjet_sm90_hsh_128x256_64x4_1x2_h_bz_coopA_TNT", "elementwise"]


def probes(seen=1.0):
    product = counted(0, **{TIME: 1.0, OPS[1]: seen * PRODUCT_FLOPS})
    tf32 = counted(0, **{TIME: 1.0, OPS[2]: seen * PRODUCT_FLOPS})
    half = counted(1, **{TIME: 1.0, HFMA: half_flops(132) / 4})
    loads = counted(1, **{TIME: 1.0, "l1tex__t_bytes.sum": load_bytes(132)})
    return [
        workload("", "lab:product", [product]),
        workload("", "lab:product", [tf32], "tf32"),
        workload("", "lab:half-loop", [half], "fp32"),
        workload("", "lab:load-loop", [loads], "fp32"),
    ]


def written(folder: Path, *workloads, seen=1.0):
    path = folder / "counters.json"
    facts = {"version": VERSION, "device": "h200", "date": "2026-11-18", "cache_control": "all"}
    values = {**facts, "metrics": list(METRICS), "names": NAMES, "workloads": [*probes(seen), *workloads]}
    path.write_text(json.dumps(values), encoding="utf-8")
    return path


def network(folder, seen=1.0):
    values, found = read_counted(written(folder, workload("net", "timm:net", [GEMM, RELU]), seen=seen))
    return values, found, checks_of(found, "h200")


def test_probes_say_what_the_counters_miss(tmp_path):
    _, _, checks = network(tmp_path)
    assert (checks.fp16_product, checks.tf32_product, checks.half, checks.l1_bytes) == (1.0, 1.0, 0.5, 1.0)
    assert checks.trusts("fp16")
    assert checks.trusts("fp32")
    _, _, blind = network(tmp_path, seen=0.0)
    assert not blind.trusts("fp16")


def test_intensities_rates_and_the_nearest_ceiling(tmp_path):
    _, found, checks = network(tmp_path)
    row = row_of(found[-1], checks, CEILINGS, None)
    assert row.flops == 4e11 + 2 * 2 * 1e9
    assert row.one.seconds == pytest.approx(2e-3)
    assert row.flops_per_s == pytest.approx(row.flops / 2e-3)
    assert [row.intensity(level) for level in LEVELS] == pytest.approx(
        [row.flops / 5e9, row.flops / 6e9, row.flops / 4.5e9]
    )
    assert row.shares == pytest.approx({"L2": 6e9 / 2e-3 / 8e12, "HBM": 4.5e9 / 2e-3 / 4e12, "tensor cores": 0.2525})
    assert row.limit == "HBM"
    faster = replace(CEILINGS, dram_gb_per_s=4e5, cache_gb_per_s=8e5, tflops={"fp16": 8e4}, l1_gb_per_s=3e6)
    assert row_of(found[-1], checks, faster, None).limit.startswith("none (nearest ")


def test_operations_are_those_of_the_graph_where_counters_are_blind(tmp_path):
    _, found, blind = network(tmp_path, seen=0.0)
    assert row_of(found[-1], blind, CEILINGS, 7e11).flops == 7e11
    assert row_of(found[-1], blind, CEILINGS, None).flops < 7e11
    _, found, checks = network(tmp_path)
    assert row_of(found[-1], checks, CEILINGS, 7e11).flops < 7e11


def test_a_brief_count_takes_the_operations_of_the_graph_and_shows_none_of_its_own(tmp_path):
    values, found, checks = network(tmp_path)
    kept = (TIME, *LEVELS.values(), HMMA, GMMA, HFMA2, BUSY)
    kernels = [replace(k, values={name: k.values[name] for name in kept}) for k in found[-1].kernels]
    brief = replace(found[-1], kernels=tuple(kernels))
    row = row_of(brief, checks, CEILINGS, 7e11)
    assert (row.flops, row.counted_flops) == (7e11, None)
    assert "| net | fp16 | 2 | 2.00 | – | 700 |" in "\n".join(lines(values, [row], checks, []))
    with pytest.raises(DataError, match="not counted"):
        row_of(brief, checks, CEILINGS, None)


def test_tensor_cores_take_half_of_the_time(tmp_path):
    _, found, _ = network(tmp_path)
    assert found[-1].tensor_share() == pytest.approx((0.5, 0.5)), "plain fp16 counts as no tensor core"
    assert found[-1].busy == pytest.approx(0.4)


def test_without_the_counters_only_names_tell(tmp_path):
    path = written(tmp_path, workload("net", "timm:net", [GEMM, RELU]))
    values = json.loads(path.read_text(encoding="utf-8"))
    for row in values["workloads"]:
        for kernel in row["kernels"]:
            kernel[2 + METRICS.index(HMMA)] = kernel[2 + METRICS.index(BUSY)] = None
    path.write_text(json.dumps(values), encoding="utf-8")
    _, found = read_counted(path)
    assert found[-1].tensor_share() == (None, pytest.approx(0.5))
    assert found[-1].busy is None


def test_the_report_has_every_network_and_what_failed(tmp_path):
    values, found, checks = network(tmp_path)
    failed = replace(found[-1], network="late", kernels=(), error="the time was over")
    text = "\n".join(lines(values, [row_of(found[-1], checks, CEILINGS, 3.9e11)], checks, [failed]))
    assert "| net | fp16 | 2 | 2.00 | 404 | 390 | 202.0 | 80.8 | 67.3 | 89.8 |" in text
    assert "| net | fp16 | – | 38 | 56 | 25 | HBM | 50 | 50 | 40 |" in text
    assert "late in fp16 has no counters: the time was over." in text
    assert "those of the graph are used" not in text
    _, _, blind = network(tmp_path, seen=0.0)
    assert "miss operations of tensor cores in fp16" in "\n".join(
        lines(values, [row_of(found[-1], blind, CEILINGS, 3.9e11)], blind, [])
    )


def test_a_network_has_a_point_for_each_level(tmp_path):
    _, found, checks = network(tmp_path)
    picture = draw([row_of(found[-1], checks, replace(CEILINGS, l1_gb_per_s=3e4), None)], CEILINGS, "fp16")
    titles = [element.text for element in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}title")]
    assert [title.splitlines()[0] for title in titles if "net" in title] == ["net, L1", "net, L2", "net, HBM"]
    assert "HBM 4 TB/s" in picture


def test_the_page_is_made_from_the_file_alone(tmp_path, monkeypatch):
    path = written(tmp_path, workload("net", "timm:net", [GEMM]), workload("late", "timm:l", [], error="x"))
    words = ["hierarchy", "--counters", str(path), "--report", str(tmp_path / "r" / "a.md"), "--no-graphs",
             "--picture", str(tmp_path / "a.svg")]  # fmt: skip
    monkeypatch.setattr("sys.argv", words)
    assert hierarchy.main() == 0
    assert "| net | fp16 |" in (tmp_path / "r" / "a.md").read_text(encoding="utf-8")
    assert (tmp_path / "a.svg").read_text(encoding="utf-8").startswith("<svg")


def test_a_file_that_is_not_there_says_what_to_run(tmp_path):
    with pytest.raises(DataError, match=r"lab\.campaigns\.roofline"):
        read_counted(tmp_path / "none.json")
    (tmp_path / "old.json").write_text('{"version": 0}', encoding="utf-8")
    with pytest.raises(DataError, match="version 1"):
        read_counted(tmp_path / "old.json")


def test_what_one_file_lacks_another_has(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    late = workload("net", "timm:net", [], error="the time was over")
    first, second = written(tmp_path / "a", late), written(tmp_path / "b", workload("net", "timm:net", [GEMM]))
    _, found = read_all([first, second, first])
    assert [(one.network, len(one.kernels)) for one in found if one.network] == [("net", 1)]
    other = written(tmp_path / "c")
    other.write_text(other.read_text(encoding="utf-8").replace('"all"', '"none"'), encoding="utf-8")
    with pytest.raises(DataError, match="other caches"):
        read_all([first, other])


def test_no_bytes_are_an_infinite_intensity(tmp_path):
    _, found, checks = network(tmp_path)
    quiet = [replace(kernel, values={TIME: 1.0, **dict.fromkeys(SASS, 0.0)}) for kernel in found[-1].kernels]
    assert row_of(replace(found[-1], kernels=tuple(quiet)), checks, CEILINGS, None).intensity("L1") == math.inf


def test_the_graph_of_a_network_has_its_operations(tmp_path):
    pytest.importorskip("torch")
    _, found, _ = network(tmp_path)
    mlp = replace(found[-1], spec="synthetic:mlp?act=relu&widths=8-16-4", batch_size=2, input_shape=(8,), dtype="fp32")
    least = 2 * 2 * (8 * 16 + 16 * 4)
    assert least <= (graph_flops(mlp) or 0) < 3 * least
