"""Columns that come from a memo are those that every graph would get by itself."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
import pytest

from foretell.devices import find_device
from foretell.errors import ForetellError
from foretell.features.shapes import SHAPE_COLUMNS, describe_shapes
from foretell.features.unit_columns import RowTable
from foretell.features.units import COLUMNS, columns_of, extract_units
from foretell.graph import Graph, signatures
from foretell.graph.ir.layout import layouts
from foretell.predictors.roofline import peak_memory_mib
from foretell.records import Target, Workload
from foretell.workflows.workload import load_graph
from tests.fuzz.onnx_models import make_model

RESNET = Path(__file__).parents[2] / "examples" / "resnet50.onnx"
DEVICES = ("h200", "l4", "cpu")
SHAPES_FROM = COLUMNS.index(SHAPE_COLUMNS[0])


def graphs() -> Iterator[Graph]:
    """A network at several batch sizes and dtypes, and random models of all operators."""
    resnet = load_graph(str(RESNET), use_cache=False)
    for batch_size, dtype in ((1, "fp32"), (8, "fp16"), (3, "fp16"), (8, "bf16")):
        yield resnet.with_batch(batch_size).with_dtype(dtype)
    for seed in range(200):
        try:
            yield load_graph(make_model(Random(seed)), use_cache=False, allow_unknown=True)
        except (ForetellError, ValueError):  # a model that cannot be read, or that onnx cannot write
            continue


def workloads(graph: Graph, seed: int) -> Iterator[Workload]:
    target = Target(find_device(DEVICES[seed % len(DEVICES)]))
    yield Workload(graph, target, channels_last=seed % 4 == 1)
    yield Workload(graph, target, "bf16", "training", ("sgd", "adamw")[seed % 2])


def answers(workload: Workload) -> object:
    try:
        units = extract_units(workload)
        memory_mib = peak_memory_mib(workload)
    except ForetellError as error:
        return str(error)
    costs = columns_of(workload).costs
    return units.operators, units.nodes, units.features.tobytes(), units.bound_us.tobytes(), costs, memory_mib


def test_a_memo_that_many_graphs_filled_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signatures, "_memo", signatures.Memo())
    asked = [(seed, graph) for seed, graph in enumerate(graphs())]
    assert len(asked) > 40
    shared = [answers(workload) for seed, graph in asked for workload in workloads(graph, seed)]
    alone = []
    for seed, graph in asked:
        for workload in workloads(_copied(graph), seed):
            monkeypatch.setattr(signatures, "_memo", signatures.Memo())
            alone.append(answers(workload))
    assert shared == alone


def _copied(graph: Graph) -> Graph:
    """The same graph without anything that was computed from it."""
    return Graph(**graph.__getstate__())


@pytest.mark.parametrize("device", DEVICES)
def test_the_sizes_of_kernels_are_those_of_the_device(device: str) -> None:
    workload = Workload(load_graph(str(RESNET), use_cache=False).with_batch(4), Target(find_device(device)))
    graph, units = workload.graph, extract_units(workload)
    sms = workload.target.hardware.sms
    for number, (nodes, cost) in enumerate(zip(units.nodes, columns_of(workload).costs, strict=True)):
        expected = describe_shapes(graph, graph.nodes[nodes[0]], cost, layouts(graph), sms)
        assert units.features[number, SHAPES_FROM:].tolist() == np.array(expected, np.float32).tolist()


def test_a_table_grows() -> None:
    table = RowTable(2)
    numbers = [table.add((float(i), -float(i))) for i in range(200)]
    assert numbers == list(range(200))
    assert table.take(np.array([199, 0, 64])).tolist() == [[199.0, -199.0], [0.0, 0.0], [64.0, -64.0]]


@pytest.mark.parametrize("optimizer", [None, "adamw"])
def test_units_share_a_row_only_where_all_of_it_is_equal(optimizer: str | None) -> None:
    graph = load_graph(str(RESNET), use_cache=False)
    mode = "training" if optimizer else "inference"
    columns = columns_of(Workload(graph, Target(find_device("h200")), "fp32", mode, optimizer))
    rows = columns.rows[columns.member]
    forward = [number for number, phase in enumerate(columns.phases) if phase == "forward"]
    owned = [columns.costs[number].parameter_bytes for number in forward]
    assert len(set(owned)) > 10
    assert rows[forward, COLUMNS.index("log_parameter_bytes")].tolist() == [np.log2(size + 1.0) for size in owned]
    for name in ("flops", "bytes", "launches"):
        assert columns.work(name).tolist() == [float(getattr(cost, name)) for cost in columns.costs]
    assert len(columns.rows) < 0.7 * len(columns), "a residual network repeats its blocks"
    assert (np.diff(np.unique(columns.member, return_index=True)[1]) > 0).all(), "in the order of first use"
