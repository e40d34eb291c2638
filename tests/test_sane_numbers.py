"""Numbers that contradict each other or physics are bugs. ``benchmarks/sane.py`` checks 30 measured models."""

from collections import Counter
from pathlib import Path

import pytest

from foretell.frontends import ModelRequest, convert
from foretell.graph import Graph
from foretell.testing import tiny_graph
from properties import check_model, count
from small.small_samples import blocks

RESNET = Path(__file__).parents[1] / "examples" / "resnet50.onnx"


def graphs() -> list[Graph]:
    models = [blocks(1, width, depth) for width, depth in ((64, 3), (4096, 4))]
    return [tiny_graph(1, 8), *models]


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("device", ["h200", "a100", "l4"])
def test_predictions_contradict_neither_each_other_nor_physics(device: str, mode: str) -> None:
    total: Counter[str] = Counter()
    broken: dict[str, list[str]] = {}
    for graph in graphs():
        for batch_size, dtype in ((1, "fp32"), (64, "bf16")):
            count(check_model(graph, device, batch_size, dtype, mode), total, broken)
    assert not broken
    assert total["numbers are finite and in order"] >= 100


@pytest.mark.parametrize("predictor", [None, "roofline"])
def test_a_network_of_many_kinds_of_units_is_sane_by_every_predictor(predictor: str | None) -> None:
    total: Counter[str] = Counter()
    broken: dict[str, list[str]] = {}
    graph = convert(ModelRequest(str(RESNET)), use_cache=False)
    for batch_size, dtype in ((1, "fp32"), (32, "bf16")):
        count(check_model(graph, "h200", batch_size, dtype, "inference", predictor), total, broken)
    assert not broken
    assert total["mps:100 is the whole device"] == 10
