"""Many predictions: another batch size, a search space, long graphs, a sweep over devices, memory. One thread.

python benchmarks/many.py                     all of it, about two minutes
python benchmarks/many.py --before FOLDER     against the checkout in FOLDER: both in turns, three times, and the ratios
python benchmarks/many.py --predictions 1000000    and the memory of so many predictions: an hour
python benchmarks/many.py --settings 1000000       the memory of so many settings of one network: ten minutes

Machines differ, and so do moments of a shared one: each time is also given as a multiple of a product of matrices of
the same run (512 × 512 × 4,096 in single precision, which takes 21 ms on the machine of ``docs/lab/0050-fast.md``).
"""

import argparse
import importlib.util
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np

import foretell
from foretell.graph import Node, Tensor, signatures
from foretell.predictors.unit import predictor

ROOT = Path(__file__).parents[1]
ROUNDS = 25
TURNS = 3


def search_space() -> Any:
    """The module ``examples/search.py``."""
    spec = importlib.util.spec_from_file_location("search", ROOT / "examples" / "search.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["search"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def seconds(work: Callable[[], object]) -> float:
    """The processor's time: what others do on the machine counts less."""
    started = time.process_time()
    work()
    return time.process_time() - started


def reference() -> float:
    left, right = np.ones((4096, 512), np.float32), np.ones((512, 512), np.float32)
    return statistics.median(seconds(lambda: left @ right) for _ in range(9))


def compare(before: Path) -> None:
    """Run this file with the code of two checkouts in turns; print the times of each, their medians' ratio."""
    found: dict[str, dict[str, list[float]]] = {}
    for _ in range(TURNS):
        for name, root in (("before", before), ("after", ROOT)):
            command = [sys.executable, __file__, "--predictions", "0"]
            text = subprocess.run(
                command, env={**os.environ, "PYTHONPATH": str(root / "src")}, capture_output=True, text=True, check=True
            ).stdout
            for line in text.splitlines():
                if match := re.match(r"(.+?) +([0-9.]+) ms ", line):
                    found.setdefault(match[1], {}).setdefault(name, []).append(float(match[2]))
    print(f"{'ms of the processor':58} {'before':>17} {'after':>17}   ratio")
    for what, times in found.items():
        each = [times[name] for name in ("before", "after")]
        spans = [f"{min(own):8.2f} –{max(own):7.2f}" for own in each]
        print(f"{what:58} {spans[0]} {spans[1]}   {statistics.median(each[1]) / statistics.median(each[0]):5.2f}")


def show(what: str, each_s: float, unit_s: float, more: str = "") -> None:
    print(f"{what:58} {each_s * 1e3:9.2f} ms   {each_s / unit_s:7.2f} products  {1 / each_s:9.1f} a second  {more}")


def repeated(blocks: int) -> foretell.Graph:
    """A network of ten nodes a block: products, norms and activations of 64 rows."""
    tensors = {"t0": Tensor("t0", (1, 64, 256), kind="input", batch_axis=0)}
    nodes: list[Node] = []
    for number in range(10 * blocks):
        name, before = f"t{number + 1}", f"t{number}"
        tensors[name] = Tensor(name, (1, 64, 256), batch_axis=0)
        op = ("LayerNormalization", "MatMul", "Add", "Gelu", "MatMul", "Add", "Mul", "Softmax", "Relu", "Add")[
            number % 10
        ]
        inputs: tuple[str, ...] = (before,)
        if op == "MatMul":
            tensors[f"w{number}"] = Tensor(f"w{number}", (256, 256), kind="parameter")
            inputs = (before, f"w{number}")
        elif op in ("Add", "Mul"):
            inputs = (before, f"t{max(number - 2, 0)}")
        nodes.append(Node(name, op, inputs, (name,)))
    return foretell.Graph(f"{10 * blocks} nodes", tuple(nodes), tensors, ("t0",), (f"t{10 * blocks}",), 1)


def largest_difference(search: Any) -> float:
    """Of any number, between graphs predicted in random orders, many at once, and each one with empty tables."""
    rng = random.Random(1)
    asked = [
        (search.build(search.draw(rng)), {"batch_size": rng.choice((1, 3, 16)), "dtype": rng.choice(("fp16", "fp32"))})
        for _ in range(40)
    ]
    alone = []
    for graph, options in asked:
        signatures._memo = signatures.Memo()
        predictor.shipped.cache_clear()
        alone.append(numbers(foretell.predict(foretell.Graph(**graph.__getstate__()), **options)))
    worst = 0.0
    for _ in range(3):
        order = rng.sample(range(len(asked)), len(asked))
        for place, answer in zip(order, foretell.predict_many([asked[place] for place in order]), strict=True):
            assert isinstance(answer, foretell.Prediction)
            pairs = zip(numbers(answer), alone[place], strict=True)
            worst = max(worst, *(abs(one - other) / max(abs(other), 1e-300) for one, other in pairs))
    return worst


def numbers(answer: Any) -> list[float]:
    """All numbers of a prediction, in a fixed order."""
    found = answer.to_dict() if isinstance(answer, foretell.Prediction) else answer
    if isinstance(found, dict | list):
        values = found.values() if isinstance(found, dict) else found
        return [number for value in values for number in numbers(value)]
    return [float(found)] if isinstance(found, int | float) else []


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def in_settings(count: int) -> Iterator[tuple[foretell.Graph, dict[str, Any]]]:
    """A ResNet-50 at one batch size after the other, on 64 GPUs each."""
    resnet = foretell.load_graph(str(ROOT / "examples" / "resnet50.onnx"))
    devices = [device.id for device in foretell.devices() if not device.is_cpu and device.is_nvidia][:64]
    for number in range(-(-count // len(devices))):
        size = number % 2048 + 1
        graph = foretell.load_graph(resnet, batch_size=size)
        yield from ((graph, {"device": device, "batch_size": size}) for device in devices)


def watch(asked: Iterator[Any], count: int) -> None:
    """Predict, and say what memory the process has now and then."""
    looks = {10**power for power in range(3, 10)} | {count * eighth // 8 for eighth in range(1, 9)}
    for number, answer in enumerate(foretell.predict_many(asked, dtype="fp16"), 1):
        assert isinstance(answer, foretell.Prediction)
        if number in looks:  # at once: a run that is ended early has said how far it came
            print(f"memory of the process after {number:,} predictions {resident_mib():.0f} MiB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--predictions", type=int, default=4_000)
    parser.add_argument("--settings", type=int, help="instead: the memory of so many batch sizes times devices")
    parser.add_argument("--before", type=Path, help="a checkout to compare with")
    options = parser.parse_args()
    predictions = options.predictions
    if options.before:
        compare(options.before.resolve())
        return
    if options.settings:
        watch(in_settings(options.settings), options.settings)
        return
    unit_s, search = reference(), search_space()
    print(f"a product of matrices takes {unit_s * 1e3:.1f} ms")
    resnet = foretell.load_graph(str(ROOT / "examples" / "resnet50.onnx"))

    def once(batch_size: int, **options: Any) -> None:
        foretell.predict(resnet, batch_size=batch_size, dtype="fp16", **options)

    once(1000)
    new = [seconds(lambda size=size: once(size)) for size in range(1, ROUNDS + 1)]  # type: ignore[misc]
    show(f"ResNet-50 ({len(resnet.nodes)} nodes), another batch size", statistics.median(new), unit_s)
    again = [seconds(lambda size=size: once(size)) for size in range(1, ROUNDS + 1)]  # type: ignore[misc]
    show("the same batch sizes again", statistics.median(again), unit_s)
    sizes = [(resnet, {"batch_size": size}) for size in range(101, 165)]
    show(
        "64 new batch sizes in one call", seconds(lambda: list(foretell.predict_many(sizes, dtype="fp16"))) / 64, unit_s
    )
    devices = [device.id for device in foretell.devices() if not device.is_cpu and device.is_nvidia][:64]
    graph = foretell.load_graph(resnet, batch_size=7)
    asked = [(graph, {"device": device}) for device in devices]
    each_s = seconds(lambda: list(foretell.predict_many(asked, batch_size=7, dtype="fp16"))) / len(asked)
    show(f"{len(asked)} devices, one batch size", each_s, unit_s)

    rng = random.Random(0)
    for first, count in ((0, 64), (64, 936), (1000, 1000)):
        graphs = [search.build(search.draw(rng)) for _ in range(count)]
        each_s = seconds(lambda: list(foretell.predict_many(graphs, dtype="fp16"))) / count  # noqa: B023
        nodes = statistics.mean(len(graph.nodes) for graph in graphs)
        show(f"graphs {first + 1:,} to {first + count:,} of a search space ({nodes:.0f} nodes)", each_s, unit_s)
    candidates = [search.draw(rng) for _ in range(256)]
    depths = candidates[0].depths
    graphs = [search.build(replace(candidate, depths=depths)) for candidate in candidates]
    each_s = seconds(lambda: list(foretell.predict_many(graphs, dtype="fp16"))) / len(graphs)
    show(f"{len(graphs)} more with the same depths ({len(graphs[0].nodes)} nodes)", each_s, unit_s)

    print(f"in random orders, together and alone: {largest_difference(search):.1e} apart at most in any number")

    # before the long graphs: what they leave free would hide a process that grows
    def stream() -> Iterator[foretell.Graph]:
        for _ in range(predictions):
            yield search.build(search.draw(rng))

    watch(stream(), predictions)

    for blocks in (100, 1_000, 10_000):
        long = repeated(blocks)
        took_s = seconds(lambda: list(foretell.predict_many([long], dtype="fp16")))  # noqa: B023
        show(f"a graph of {10 * blocks:,} nodes", took_s, unit_s, f"{took_s / (10 * blocks) * 1e6:.1f} µs a node")


if __name__ == "__main__":
    main()
