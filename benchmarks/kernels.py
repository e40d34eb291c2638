"""How long telling kernels takes, against the latency of the whole alone; one run, one thread, no torch.

python benchmarks/kernels.py          transformers of 304 and 10,000 nodes, made here; needs foretell alone

Each step is timed from the graph on, files read before: latency by unit-network, kernels under Inductor by the
partitioner, and what of `--explain kernels` comes on top.
"""

import statistics
import time
from collections.abc import Callable

from foretell.devices import find_device
from foretell.graph import Graph, Node, Tensor
from foretell.predictors import find_predictor
from foretell.predictors.explain import explain_kernels
from foretell.predictors.fusion.partitioner import Partitioner
from foretell.predictors.kernels.shares import classifier_for
from foretell.records import Target, Workload
from foretell.units import ms

ROUNDS = 5
WIDTH = 256
BLOCK = 8  # nodes


def transformer(nodes: int) -> Graph:
    """Blocks of a norm, two products, an activation and a residual; widths differ, so that units do."""
    made: list[Node] = []
    tensors = {"x": Tensor("x", (8, WIDTH), kind="input")}
    stream = "x"
    for number in range(nodes // BLOCK):
        inner = WIDTH + 8 * (number % 64)
        names = [f"t{number}.{place}" for place in range(BLOCK)]
        shapes = [(8, WIDTH), (8, inner), (8, inner), (8, WIDTH), *[(8, WIDTH)] * 4]
        tensors |= {name: Tensor(name, shape) for name, shape in zip(names, shapes, strict=True)}
        weights = {"g": (WIDTH,), "h": (WIDTH,), "u": (WIDTH, inner), "v": (inner,), "w": (inner, WIDTH), "b": (WIDTH,)}
        tensors |= {f"{key}{number}": Tensor(f"{key}{number}", s, kind="parameter") for key, s in weights.items()}
        norm, up, act, down, scaled, shown, added, last = names
        steps = (
            ("LayerNormalization", (stream, f"g{number}", f"h{number}"), norm),
            ("Gemm", (norm, f"u{number}", f"v{number}"), up),
            ("Gelu", (up,), act),
            ("Gemm", (act, f"w{number}", f"b{number}"), down),
            ("Mul", (down, down), scaled),
            ("Reshape", (scaled,), shown),
            ("Add", (stream, shown), added),
            ("Relu", (added,), last),
        )
        made += [Node(f"{op}.{number}.{out}", op, inputs, (out,)) for op, inputs, out in steps]
        stream = last
    return Graph.build("transformer", made, tensors, ["x"], [stream])


def seconds(work: Callable[[], object]) -> float:
    """The median of a few runs, after one that is not counted."""
    work()
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    target = Target(find_device("h200"))
    predictor, partitioner = find_predictor(None, target.device.id), Partitioner.shipped()
    classifier, warning = classifier_for(target)

    def measure(workload: Workload) -> str:
        told = predictor.predict(workload)
        whole = seconds(lambda: predictor.predict(workload))
        found = {"kernels under Inductor": seconds(lambda: partitioner.partition(workload.graph, "inductor"))}
        if classifier is not None and told.latency_ms is not None:
            latency_ms = told.latency_ms.value
            found["their classes"] = seconds(lambda: explain_kernels(workload, predictor, latency_ms, classifier))
        parts = (f"{name} {ms(spent):.0f} ms, {spent / whole:.2f} times" for name, spent in found.items())
        return f"{len(workload.graph.nodes)} nodes: latency {ms(whole):.0f} ms; " + "; ".join(parts)

    for nodes in (304, 10_000):
        print(measure(Workload(transformer(nodes), target)))
    if warning:
        print(warning)


if __name__ == "__main__":
    main()
