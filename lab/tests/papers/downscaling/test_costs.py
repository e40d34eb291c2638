import pytest

from foretell import load_graph
from lab.papers.downscaling import costs


def test_prices_are_those_of_the_thesis_for_its_own_times():
    assert costs.price(37, costs.PRICES["a100"]) == pytest.approx(0.301, abs=1e-3)
    assert costs.price(5150, costs.PRICES["c5.4xlarge"]) == pytest.approx(9.72, abs=0.01)


def test_the_largest_operator_is_the_one_of_the_thesis():
    pytest.importorskip("torch")
    graph = load_graph(costs.MODEL, input_shape=(3, 96, 128), trust=True)
    shapes = [graph.tensors[node.inputs[1]].shape for node in graph.nodes if node.op == "Conv"]
    assert shapes.count((56, 112, 3, 3)) == 1


def test_an_epoch_is_shorter_on_two_gpus_and_in_mixed_precision():
    pytest.importorskip("torch")
    single = costs.predicted("a100", "fp32", 64, "training")
    mixed = costs.predicted("a100", "fp16", 64, "training")
    two = costs.predicted("a100", "fp16", 64, "training", gpus=2)
    assert costs.epoch_s(mixed, 64) < costs.epoch_s(single, 64)
    assert costs.epoch_s(mixed, 64) / 2 <= costs.epoch_s(two, 64, gpus=2) < costs.epoch_s(mixed, 64)
