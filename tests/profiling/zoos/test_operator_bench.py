import pytest

torch = pytest.importorskip("torch")

from foretell.profiling.campaign.plan import Part
from foretell.profiling.zoos.operator_bench import OperatorBench
from foretell.profiling.zoos.registry import build, load_zoo


@pytest.mark.parametrize("seed", range(4))
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
    assert {"Conv2d", "Linear", "_ChannelsLast"} <= names <= {
        "Conv1d", "Conv2d", "Conv3d", "ConvTranspose2d", "Linear", "_First", "_ChannelsLast", "Softmax", "Call",
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


def test_benches_are_drawn_only_where_they_are_asked_for():
    zoo = load_zoo("synthetic")
    networks = zoo.entries(Part("random", 1.0, ("synthetic",), models=24), seed=1)
    assert not any("operators" in entry.spec for entry in networks)
    part = Part("bench", 1.0, ("synthetic",), models=3, families=("synthetic-operators",))
    benches = zoo.entries(part, seed=1)
    assert len({entry.spec for entry in benches}) == 3
    assert len(build(benches[0].spec).model.operators) == 250
