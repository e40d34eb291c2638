"""Training on several GPUs: one GPU is today's answer, nothing is faster than without communication, memory falls."""

from dataclasses import replace

import pytest

from foretell.devices import find_device
from foretell.errors import InputError
from foretell.graph import Graph, Node, training_peak
from foretell.graph.memory.training import training_memory
from foretell.predictors.llm.collectives import Fabric, Kind, fabric_of
from foretell.predictors.parallel.step_parts import Block, StepParts, step_parts
from foretell.predictors.parallel.training import (
    STRATEGIES,
    check_heads,
    memory_bytes,
    predict_parallel,
    step_times,
)
from foretell.predictors.roofline import RooflinePredictor
from foretell.records import Prediction, Target, Workload
from foretell.testing import chain, tiny_graph
from foretell.units import MIB

H200 = find_device("h200")
FABRIC = fabric_of(H200, network="infiniband-ndr")
DATA_PARALLEL = ("ddp", "zero1", "zero2", "zero3")


def layers(count: int = 6, width: int = 2048, batch: int = 4) -> Graph:
    """Numbered layers of one product and one activation, and a head outside of them."""
    nodes, shapes, last = [], {"x": (batch, width)}, "x"
    for number in range(count):
        nodes += [
            Node(f"m{number}", "MatMul", (last, f"w{number}"), (f"h{number}",), module=f"layers.{number}.fc"),
            Node(f"r{number}", "Relu", (f"h{number}",), (f"y{number}",), module=f"layers.{number}.act"),
        ]
        shapes |= {f"w{number}": (width, width), f"h{number}": (batch, width), f"y{number}": (batch, width)}
        last = f"y{number}"
    nodes.append(Node("head", "MatMul", (last, "w_head"), ("out",), module="head"))
    shapes |= {"w_head": (width, 64), "out": (batch, 64)}
    return chain(nodes, shapes, ["x"], ["out"], batch_size=batch)


def work(graph: Graph | None = None, optimizer: str = "adamw") -> Workload:
    return Workload(graph or layers(), Target(H200), "fp32", "training", optimizer)


def predicted(strategy: str, gpus: int, fabric: Fabric = FABRIC, workload: Workload | None = None) -> Prediction:
    workload, predictor = workload or work(), RooflinePredictor()
    return predict_parallel(predictor.predict(workload), workload, predictor, strategy, gpus, fabric)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_gpu_is_todays_answer(strategy: str) -> None:
    """The very same prediction."""
    assert predicted(strategy, 1) == RooflinePredictor().predict(work())


@pytest.mark.parametrize("gpus", [2, 8, 64, 1024])
@pytest.mark.parametrize("strategy", DATA_PARALLEL)
def test_communication_costs(strategy: str, gpus: int) -> None:
    """Efficiency is at most 1, the interval holds the value, and warnings say what was not measured."""
    alone, shared = RooflinePredictor().predict(work()), predicted(strategy, gpus)
    assert shared.parallel is not None
    assert shared.latency_ms is not None
    assert alone.latency_ms is not None
    parts = step_parts(work(), RooflinePredictor())
    assert shared.latency_ms.value >= alone.latency_ms.value * (parts.forward + parts.backward)
    assert shared.latency_ms.low <= shared.latency_ms.value <= shared.latency_ms.high
    efficiency = shared.parallel.efficiency
    assert 0 < efficiency.low <= efficiency.value <= efficiency.high <= 1
    assert 0 <= shared.parallel.exposed_ms.value <= shared.parallel.communication_ms.value * (1 + 1e-9)
    assert shared.parallel.batch_size == 4 * gpus
    assert shared.throughput_per_s is not None
    assert shared.throughput_per_s.value == pytest.approx(4 * gpus / shared.latency_ms.value * 1e3)
    assert shared.extrapolated
    assert any("Training on several GPUs was not measured" in warning for warning in shared.warnings)
    assert any("nodes was not measured" in warning for warning in shared.warnings) == (gpus > 8)
    assert shared.energy_j is None
    assert shared.to_dict()["parallel"]["gpus"] == gpus


def test_slower_fabrics_are_less_efficient() -> None:
    """NVLink hides more than a slow network between nodes."""
    values = []
    for gpus, network in ((8, None), (16, "infiniband-ndr"), (16, "1")):
        shared = predicted("ddp", gpus, fabric_of(H200, network=network))
        assert shared.parallel is not None
        values.append(shared.parallel.efficiency.value)
    assert values == sorted(values, reverse=True)
    assert values[2] < 0.8 * values[0]


def test_memory_falls_with_the_stage() -> None:
    """Parameters outweigh activations here: each stage takes less, and more GPUs do too."""
    memory = {}
    for strategy in DATA_PARALLEL:
        for gpus in (2, 8, 64):
            shared = predicted(strategy, gpus)
            assert shared.memory_mib is not None
            memory[strategy, gpus] = shared.memory_mib.value
    for gpus in (2, 8, 64):
        row = [memory[strategy, gpus] for strategy in DATA_PARALLEL]
        assert row == sorted(row, reverse=True)
        assert len(set(row)) == 4
    for strategy in DATA_PARALLEL[1:]:
        assert memory[strategy, 64] < memory[strategy, 8] < memory[strategy, 2]
    alone = RooflinePredictor().predict(work()).memory_mib
    assert alone is not None
    # DDP keeps a second copy of the gradients
    assert memory["ddp", 8] - alone.value == pytest.approx(6 * 16 + 0.5, rel=0.01)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("graph", [tiny_graph(), layers(), layers(2, 64, 512)])
def test_parts_of_memory_add_up(graph: Graph, optimizer: str) -> None:
    """Without sharing, the parts make the peak that is known."""
    assert memory_bytes(training_memory(graph, optimizer), None, 1) == training_peak(graph, optimizer).bytes


def test_parts_of_a_step() -> None:
    """Shares add up, every gradient is ready within backward, and blocks are the numbered layers."""
    parts = step_parts(work(), RooflinePredictor())
    assert parts.forward + parts.backward + parts.optimizer == pytest.approx(1)
    assert sum(b.forward for b in parts.blocks) == pytest.approx(parts.forward)
    assert sum(b.backward for b in parts.blocks) == pytest.approx(parts.backward)
    assert [block.name for block in parts.blocks] == ["", *(f"layers.{n}" for n in range(6))]
    assert sum(b.parameter_bytes for b in parts.blocks) == parts.parameter_bytes == (6 * 2048 + 64) * 2048 * 4
    moments = [moment for moment, _ in parts.ready]
    assert moments == sorted(moments)
    assert moments[-1] == pytest.approx(parts.backward)
    assert 0 < parts.moved <= parts.optimizer


PARTS = StepParts(
    forward=0.3, backward=0.6, optimizer=0.1, moved=0.08, splittable=0.8, attentions=((16, MIB),) * 2,
    ready=((0.2, 2 * MIB), (0.4, 30 * MIB), (0.6, 8 * MIB)),
    blocks=(Block("", 0.0, 0.0, 0), *(Block(f"b.{n}", 0.1, 0.2, 10 * MIB) for n in range(3))),
)  # fmt: skip


def test_overlap_by_hand() -> None:
    """Exchanges of one second each in a step of ten seconds."""

    def second(kind: Kind, size: float) -> float:
        del kind, size
        return 1.0

    # buckets are full at 2, 4 and 6 s of backward; the last one is not hidden
    assert step_times(PARTS, "ddp", 8, 10.0, second).whole == pytest.approx(3 + 6 + 1 + 1)
    # the gather at the end is not hidden either; seven eighths of the bytes of the update are somebody else's
    update = 1 - 0.8 * 7 / 8
    assert step_times(PARTS, "zero1", 8, 10.0, second).whole == pytest.approx(3 + 6 + 1 + 1 + update)
    # the first gather and the last scatter are not hidden; an empty root takes nothing
    sharded = step_times(PARTS, "zero3", 8, 10.0, second)
    assert sharded.whole == pytest.approx(1 + 3 + 6 + 1 + update)
    assert sharded.communicated == pytest.approx(3 + 2 + 3)
    tensor = step_times(PARTS, "tensor", 8, 10.0, second)
    assert tensor.whole == pytest.approx(8 / 8 + 1 + update + 2 * 4)


def test_exchanges_that_take_longer_than_the_work() -> None:
    """Then the step is bound by them: one after the other, beside nothing but the first forward."""

    def slow(kind: Kind, size: float) -> float:
        del kind
        return size / MIB

    assert step_times(PARTS, "ddp", 8, 1.0, slow).whole == pytest.approx(0.3 + 0.2 + 40 + 0.1)
    sharded = step_times(PARTS, "zero3", 8, 1.0, slow)
    assert sharded.whole > sharded.communicated == pytest.approx(30 + 20 + 30)


def test_nothing_to_exchange_is_one_gpu() -> None:
    """With exchanges that take no time DDP is as fast as one GPU."""
    assert step_times(PARTS, "ddp", 8, 10.0, lambda *_: 0.0).whole == pytest.approx(10)


def test_refusals() -> None:
    """One line says what would work."""
    with pytest.raises(InputError, match="use 2, 4, 8, 16 GPUs"):
        check_heads(PARTS, 3, "net")
    with pytest.raises(InputError, match="has none: use ddp or zero3"):
        predicted("tensor", 2)
    with pytest.raises(InputError, match="zero3"):
        predicted("zero4", 2)
    with pytest.raises(InputError, match="--network"):
        predicted("ddp", 16, fabric_of(H200))
    with pytest.raises(InputError, match="--mode training"):
        predicted("ddp", 2, workload=Workload(layers(), Target(H200)))


def test_tensor_parallelism_divides_a_transformer() -> None:
    """Less time and memory than alone, and less than an equal share of the time only if nothing is repeated."""
    width = 1024
    nodes = [Node("n", "LayerNormalization", ("x", "w_n"), ("h",), module="layers.0.norm")]
    shapes: dict[str, tuple[int, ...]] = {"x": (8, 512, width), "w_n": (width,), "h": (8, 512, width)}
    for name in "qkv":
        nodes.append(Node(name, "MatMul", ("h", f"w_{name}"), (name,), module=f"layers.0.{name}"))
        shapes |= {f"w_{name}": (width, width), name: (8, 512, width)}
    heads = {"q_num_heads": 16, "kv_num_heads": 16}
    nodes.append(Node("a", "Attention", ("q", "k", "v"), ("y",), heads, module="layers.0.attention"))
    nodes.append(Node("o", "MatMul", ("y", "w_o"), ("out",), module="layers.0.out"))
    shapes |= {"y": (8, 512, width), "w_o": (width, width), "out": (8, 512, width)}
    workload = work(chain(nodes, shapes, ["x"], ["out"], batch_size=8))
    alone, shared = RooflinePredictor().predict(workload), predicted("tensor", 4, workload=workload)
    assert alone.latency_ms is not None
    assert shared.latency_ms is not None
    assert shared.parallel is not None
    assert alone.memory_mib is not None
    assert shared.memory_mib is not None
    assert alone.latency_ms.value / 4 < shared.latency_ms.value < alone.latency_ms.value
    assert alone.memory_mib.value / 4 < shared.memory_mib.value < alone.memory_mib.value
    assert shared.parallel.efficiency.high <= 1
    assert shared.parallel.batch_size == 8
    refused = replace(workload, target=Target(H200))
    with pytest.raises(InputError, match="do not divide the 16 heads"):
        predicted("tensor", 3, workload=refused)
