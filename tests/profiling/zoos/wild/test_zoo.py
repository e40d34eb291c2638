"""Every wild network runs, trains and becomes a graph; by default the smallest size of one network a field."""

import pytest

torch = pytest.importorskip("torch")

from foretell.errors import InputError, UnknownNameError
from foretell.graph.ir.operators import lookup
from foretell.profiling.campaign.plan import Part
from foretell.profiling.first_run import is_finite
from foretell.profiling.skeleton import Weights
from foretell.profiling.steps import make_step, weight_dtype
from foretell.profiling.workload import Workload, parse_spec
from foretell.profiling.zoos.registry import build, load_zoo
from foretell.profiling.zoos.wild.zoo import JUDGING_FIELDS, judges, networks

ENTRIES = load_zoo("wild").entries(Part("all", 1.0, ("wild",)), 0)
SMALLEST = {parse_spec(entry.spec).name: entry for entry in reversed(ENTRIES)}
LARGEST = {parse_spec(entry.spec).name: entry for entry in ENTRIES}
# one of each field that is quickly read: what runs by default
QUICK = (
    "actions", "atoms", "beta-vae", "board-tower", "crosses", "dcgan", "dense-graph", "diagonal-states", "fourier-line",
    "gated-unet", "hourglass", "kernel-attention", "letter-speller", "masked-steps", "mesh-forecast", "patched-series",
    "pooled-pyramid", "pyramid-detector", "quasi", "set-mixer", "shuffle-sr", "sine-picture", "soft-experts",
    "sound-and-sight", "speaker", "spectrum-mask", "stereo", "torch-encoder", "trajectory-unet", "vector-attention",
)  # fmt: skip


def slow(value):
    return pytest.param(value, marks=pytest.mark.slow)


def sweep():
    return [
        pytest.param(entry, id=name, marks=() if name in QUICK else pytest.mark.slow)
        for name, entry in sorted(SMALLEST.items())
    ]


def on_meta(entry, mode, batch=2):
    workload = Workload(entry.spec, batch, entry.input_shape, "fp32", mode, "sgd" if mode == "training" else "")
    with torch.device("meta"):
        built = build(entry.spec)
    return built, make_step(built, workload, "meta")


def tensors(output):
    return [output] if isinstance(output, torch.Tensor) else list(output)


def test_there_are_many_fields_and_a_third_only_judges():
    catalogue = networks()
    fields = {network.field for network in catalogue.values()}
    assert len(catalogue) >= 60
    assert len(fields) >= 15
    assert fields >= JUDGING_FIELDS
    assert all(len(network.sizes) >= 2 for network in catalogue.values())
    assert 0.28 < sum(network.field in JUDGING_FIELDS for network in catalogue.values()) / len(catalogue) < 0.38
    assert {entry.family for entry in ENTRIES} == {f"wild-{field}" for field in fields}
    assert {catalogue[name].field for name in QUICK} == fields, "each field is tested by default"


def test_families_choose():
    part = Part("some", 1.0, ("wild",), families=("wild-games",))
    assert {entry.family for entry in load_zoo("wild").entries(part, 0)} == {"wild-games"}
    assert judges("wild-games")
    assert not judges("games")


@pytest.mark.parametrize("entry", LARGEST.values(), ids=LARGEST)
def test_the_largest_size_is_built(entry):
    with torch.device("meta"):
        built = build(entry.spec)
    assert not built.model.training
    assert sum(parameter.numel() for parameter in built.model.parameters()) > 1000


@pytest.mark.parametrize("entry", sweep())
def test_every_output_has_the_batch_first(entry):
    _, step = on_meta(entry, "inference", batch=3)
    assert all(tensor.shape[0] == 3 for tensor in tensors(step.run()))


@pytest.mark.parametrize("entry", sweep())
def test_every_network_trains(entry):
    built, step = on_meta(entry, "training")
    assert step.run().ndim == 0
    assert sum(parameter.grad is not None for parameter in built.model.parameters()) > 1


@pytest.mark.parametrize("entry", sweep())
def test_every_network_becomes_a_graph_of_known_operators(entry):
    from foretell.frontends.torch.export import TRACE_BATCH, graph_from_program
    from foretell.frontends.torch.program import TorchProgram

    with torch.device("meta"):
        built = build(entry.spec)
    workload = Workload(entry.spec, TRACE_BATCH, entry.input_shape, "fp32")
    inputs = built.make_inputs(workload, "meta", torch.float32)
    graph = graph_from_program(TorchProgram(entry.spec, built.model, inputs.args), batch_size=TRACE_BATCH)
    assert not {node.op for node in graph.nodes if lookup(node.op, node.domain).kind == "unknown"}
    assert not graph.warnings
    assert graph.with_batch(2).batch_size == 2


@pytest.mark.parametrize("name", ["molecules", "selective-loop", *map(slow, ("atoms", "flow", "retention"))])
@pytest.mark.parametrize(("mode", "dtype", "optimizer"), [("inference", "bf16", ""), ("training", "fp32", "adamw")])
def test_numbers_stay_finite(name, mode, dtype, optimizer):
    entry = SMALLEST[name]
    workload = Workload(entry.spec, 2, entry.input_shape, dtype, mode, optimizer)
    built = build(entry.spec)
    Weights(built.model, cast_buffers=built.cast_buffers).place("cpu", weight_dtype(workload))
    assert is_finite(make_step(built, workload, "cpu").run())


def test_a_wrong_spec_says_what_is_right():
    with pytest.raises(UnknownNameError, match="own-gpt"):
        build("wild:own-gtp")
    with pytest.raises(InputError, match="For example: wild:dit"):
        build("wild:dit?width=384")
