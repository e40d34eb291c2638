import hashlib

import pytest

torch = pytest.importorskip("torch")

from foretell.profiling.campaign.plan import Part
from foretell.profiling.zoos import operator_bench
from foretell.profiling.zoos.operator_bench import FOCUSES, OperatorBench
from foretell.profiling.zoos.registry import build, load_zoo


@pytest.mark.parametrize("seed", range(2))
def test_all_operators_fit_their_operands(seed):
    with torch.device("meta"):
        bench = OperatorBench(seed, 60)
        results = bench(torch.empty(1, 1))
    assert len(results) == len(bench.operators) + 1 == 61
    assert sum(result.numel() for result in results) < 1 << 32


def test_a_bench_follows_from_its_seed():
    with torch.device("meta"):
        first, again, other = (OperatorBench(seed, 40) for seed in (1, 1, 2))
    assert first.shapes == again.shapes != other.shapes
    assert [str(operator) for operator in first.operators][:5] == [str(operator) for operator in again.operators][:5]


def test_a_bench_of_products_has_nothing_else():
    with torch.device("meta"):
        bench = OperatorBench(3, 60, "products")
    names = {type(module).__name__ for module in bench.operators}
    assert {"Conv2d", "Linear", "ChannelsLast"} <= names <= {
        "Conv1d", "Conv2d", "Conv3d", "ConvTranspose2d", "Linear", "First", "ChannelsLast", "Softmax", "Call",
    }  # fmt: skip


def test_a_bench_of_what_is_spread_has_groups_and_recurrent_layers_alone():
    with torch.device("meta"):
        bench = OperatorBench(3, 60, "spread")
    layers = [getattr(module, "layer", module) for module in bench.operators]
    grouped = [layer.groups for layer in layers if hasattr(layer, "groups")]
    assert min(grouped) > 1
    assert len(grouped) > 30
    assert any(isinstance(layer, torch.nn.RNNBase) for layer in layers)
    assert len(grouped) + sum(isinstance(layer, torch.nn.RNNBase) for layer in layers) == len(layers)


@pytest.mark.parametrize(
    ("focus", "digest"), [("all", "f00437a35c10"), ("products", "88342ba69dca"), ("spread", "924cbc73cda6")],
)  # fmt: skip
def test_the_first_benches_stay_what_was_measured(focus, digest):
    with torch.device("meta"):
        bench = OperatorBench(5, 60, focus)
    text = f"{bench.shapes} {[str(operator) for operator in bench.operators]}"
    assert hashlib.sha256(text.encode()).hexdigest()[:12] == digest


@pytest.mark.parametrize("focus", FOCUSES)
def test_operators_of_a_subject_fit_their_operands(focus, monkeypatch):
    monkeypatch.setattr(operator_bench, "_FOCUS_MAX_MACS", 1e7)
    with torch.device("meta"):
        bench = OperatorBench(1, 20, focus).eval()
        results = bench(torch.empty(1, 1))
    assert len(results) == len(bench.operators) + 1 == 21
    assert max(result.numel() for result in results) < 1 << 28


@pytest.mark.parametrize("focus", FOCUSES)
def test_a_bench_that_is_trained_gives_gradients_to_operators_and_operands(focus, monkeypatch):
    monkeypatch.setattr(operator_bench, "_FOCUS_MAX_MACS", 2e7)
    monkeypatch.setattr(operator_bench, "_FOCUS_MAX_ELEMENTS", 1 << 14)
    bench = OperatorBench(2, 6, focus, trained=True).train()
    loss = bench(torch.ones(1, 1))
    loss.backward()
    assert loss.ndim == 0
    assert any(parameter.grad is not None for parameter in bench.operators.parameters()) or any(
        operand.grad is not None for operand in bench.operands
    )


def test_benches_are_drawn_only_where_they_are_asked_for():
    zoo = load_zoo("synthetic")
    networks = zoo.entries(Part("random", 1.0, ("synthetic",), models=24), seed=1)
    assert not any("operators" in entry.spec for entry in networks)
    part = Part("bench", 1.0, ("synthetic",), models=3, families=("synthetic-operators",))
    benches = zoo.entries(part, seed=1)
    assert len({entry.spec for entry in benches}) == 3
    assert len(build(benches[0].spec).model.operators) == 250
