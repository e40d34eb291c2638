"""Tiny workloads with made-up truths that follow from their size, for tests of graph networks."""

from dataclasses import replace

from foretell.devices import find_device
from foretell.graph import Node
from foretell.records import Target, Workload
from foretell.testing import chain, tiny_graph
from lab.papers.graph_networks.arrays import GraphArrays, extract_graph_arrays
from lab.papers.graph_networks.recipes import Recipe, find_recipe

H200 = Target(find_device("h200"))


def forked(rows: int = 4, width: int = 8) -> Workload:
    """A product whose result goes two ways, an activation and a square, which meet in a sum."""
    nodes = [
        Node("product", "MatMul", ("x", "w"), ("a",)),
        Node("relu", "Relu", ("a",), ("b",)),
        Node("square", "Mul", ("a", "a"), ("c",)),
        Node("sum", "Add", ("b", "c"), ("y",)),
    ]
    shapes = dict.fromkeys("xabcy", (rows, width)) | {"w": (width, width)}
    return Workload(chain(nodes, shapes, ["x"], ["y"], batch_size=rows), H200)


def tiny_graphs(count: int = 8) -> list[GraphArrays]:
    """Graphs of two kinds and growing size, some in half precision, some trained."""
    workloads = []
    for number in range(count):
        graph = tiny_graph(batch_size=2 ** (number % 5 + 1), channels=4 * (number + 1))
        workloads.append(Workload(graph, H200) if number % 2 else forked(2 ** (number + 1), 4 * (number + 1)))
        if number % 3 == 2:
            workloads[-1] = replace(workloads[-1], mode="training", optimizer="adamw")
    return [extract_graph_arrays(workload) for workload in workloads]


def tiny_samples(count: int = 8) -> list[tuple[GraphArrays, dict[str, float | None]]]:
    """The same graphs with truths."""
    samples = []
    for graph in tiny_graphs(count):
        macs, memory = graph.whole_of(("macs", "memory_bytes"))
        latency, memory_mib = float(macs) ** 0.7 / 100, float(memory) ** 0.8 / 100
        truth = {"latency_ms": latency, "memory_mib": memory_mib, "device_memory_mib": memory_mib + 500}
        samples.append((graph, truth | {"energy_j": latency * 0.3, "power_w": 300.0 + latency}))
    return samples


def tiny_recipe(name: str, **others: object) -> Recipe:
    """A recipe, small enough for a test."""
    small = {"width": 16, "epochs": 3, "batch": 4, "encoder_widths": (16, 8), "encoder_epochs": 2}
    return replace(find_recipe(name), **(small | others))  # type: ignore[arg-type]
