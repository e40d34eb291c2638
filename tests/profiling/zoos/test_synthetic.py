import pytest

torch = pytest.importorskip("torch")

from foretell.profiling.campaign.plan import Part
from foretell.profiling.workload import parse_spec
from foretell.profiling.zoos.registry import build
from foretell.profiling.zoos.synthetic import FAMILIES, SyntheticZoo, known


def test_the_seed_and_the_part_decide_the_random_networks():
    zoo, part = SyntheticZoo(), Part("random", 1.0, ("synthetic",), models=len(FAMILIES))
    first = zoo.entries(part, seed=3)
    assert first == zoo.entries(part, seed=3)
    published = {entry.spec for entry in known()}
    drawn = {entry.spec for entry in first} - published
    assert len(drawn) >= len(FAMILIES) - 1
    assert drawn != {entry.spec for entry in zoo.entries(part, seed=4)} - published
    other = Part("another", 1.0, ("synthetic",), models=part.models)
    assert drawn != {entry.spec for entry in zoo.entries(other, seed=3)} - published


@pytest.mark.parametrize(
    "family", ["synthetic-operators", "synthetic-spread", "synthetic-signals", "synthetic-norms-trained"]
)
def test_a_bench_of_operators_is_drawn_only_where_it_is_named(family):
    zoo = SyntheticZoo()
    networks = zoo.entries(Part("random", 1.0, ("synthetic",), models=len(FAMILIES)), seed=1)
    assert {entry.family for entry in networks} == set(FAMILIES)
    bench = zoo.entries(Part("bench", 1.0, ("synthetic",), models=3, families=(family,)), seed=1)
    assert len(bench) == 3
    assert {entry.family for entry in bench} == {family}
    assert {parse_spec(entry.spec).name for entry in bench} == {"operators"}


def test_a_spec_builds_the_layers_that_it_writes_out():
    model = build("synthetic:mlp?act=gelu&widths=12-7-5").model
    linear = [
        (layer.in_features, layer.out_features) for layer in model.modules() if isinstance(layer, torch.nn.Linear)
    ]
    assert linear == [(12, 7), (7, 5)]
    assert not model.training
