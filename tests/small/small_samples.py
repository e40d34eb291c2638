"""Samples of tiny networks whose times are known: products take three times their bound, all else twice, and a bit."""

import math
import zlib
from functools import cache

import numpy as np

from foretell.devices import find_device
from foretell.features import COLUMNS, extract_units
from foretell.features.pooled import DistinctUnits, Setting
from foretell.features.units import KINDS
from foretell.graph import Graph, Node
from foretell.predictors.boosting import TreeFit
from foretell.predictors.roofline import RooflinePredictor
from foretell.predictors.sample import TRUTHS, Sample
from foretell.predictors.unit.fit_model import Settings
from foretell.predictors.unit.fit_network import NetworkFit
from foretell.records import Target, Workload
from foretell.testing import chain, tiny_graph

H200 = Target(find_device("h200"))
WIDTHS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
BATCHES = (1, 8, 64, 256, 1024)
GAPS, MEMORY, POWER = 1.1, 1.2, 0.8  # truth over the units' sum, the counted memory, the roofline's power
QUICK = Settings(
    unit=TreeFit(rounds=20, leaves=15, learning_rate=0.3, least_in_leaf=3),
    whole=TreeFit(rounds=20, leaves=7, learning_rate=0.3, least_in_leaf=4),
    error=TreeFit(rounds=10, leaves=4, learning_rate=0.1, least_in_leaf=10),
    network=NetworkFit(width=32, blocks=1, embedding=4, epochs=40, batch=64, rate=2e-2),
    members=2,
    folds=3,
)


def blocks(batch: int, width: int, depth: int = 6) -> Graph:
    """The same product and activation a few times: units that are equal."""
    nodes, shapes = [], {"x0": (batch, width)}
    for i in range(depth):
        nodes += [
            Node(f"m{i}", "MatMul", (f"x{i}", f"w{i}"), (f"m{i}",)),
            Node(f"r{i}", "Relu", (f"m{i}",), (f"x{i + 1}",)),
        ]
        shapes |= {f"w{i}": (width, width), f"m{i}": (batch, width), f"x{i + 1}": (batch, width)}
    return chain(nodes, shapes, ["x0"], [f"x{depth}"], batch_size=batch)


def workload(
    width: int = 8, batch: int = 2, dtype: str = "fp32", mode: str = "inference", graph: Graph | None = None
) -> Workload:
    graph = graph or tiny_graph(batch, width)
    if mode == "training":
        return Workload(graph, H200, dtype, mode, "sgd")
    return Workload(graph.with_dtype(dtype), H200, dtype, mode)


def noise(name: str) -> float:
    """Within 3 % of one, the same on every run."""
    return 1 + 0.06 * (zlib.crc32(name.encode()) / 0xFFFFFFFF - 0.5)


def unit_times_us(units: DistinctUnits) -> np.ndarray:
    is_product = units.features[:, COLUMNS.index("kind")] == KINDS.index("contraction")
    return units.bound_us * np.where(is_product, 3.0, 2.0)


def sample_of(work: Workload, spec: str, family: str = "tiny", *, traced: bool = True, captured: bool = True) -> Sample:
    base, units = RooflinePredictor().predict(work), DistinctUnits.of(extract_units(work))
    assert base.latency_ms
    assert base.memory_mib
    assert base.power_w
    name = f"{spec}-{work.batch_size}-{work.dtype}-{work.mode}"
    unit_us = unit_times_us(units)
    truth = dict.fromkeys(TRUTHS, math.nan)
    if captured:
        latency_ms = float((unit_us * units.counts).sum()) / 1000 * GAPS * noise(name)
        memory_mib, power_w = base.memory_mib.value * MEMORY, base.power_w.value * POWER * noise(name + "w")
        truth |= {"latency_ms": latency_ms, "memory_mib": memory_mib, "power_w": power_w}
        truth["energy_j"] = power_w * latency_ms / 1000
    return Sample(
        name, spec, family, Setting.of(work, base.memory_mib.value), units, unit_us if traced else None,
        base.latency_ms.value, base.power_w.value, truth, captured,
    )  # fmt: skip


@cache
def small_samples() -> tuple[Sample, ...]:
    """Sixty workloads of twelve architectures in three families, half of them traced, and four benches of operators."""
    samples = []
    for number, width in enumerate(WIDTHS):
        for place, batch in enumerate(BATCHES):
            dtype = ("fp32", "fp16", "bf16")[place % 3]
            mode = "training" if (number + place) % 4 == 0 else "inference"
            work = workload(width, batch, dtype, mode, blocks(batch, 4 * width) if number % 2 else None)
            samples.append(sample_of(work, f"tiny:w{width}", f"family{number % 3}", traced=place % 2 == 0))
    for width in WIDTHS[::3]:
        samples.append(sample_of(workload(width, 16), f"tiny:bench{width}", "benches", captured=False))
    return tuple(samples)


def architectures(samples: tuple[Sample, ...]) -> list[str]:
    return [sample.spec for sample in samples]
