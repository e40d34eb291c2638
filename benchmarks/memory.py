"""The memory of a process that predicts for as long as you give it, and its slope.

python benchmarks/memory.py --predictions 100000      small random networks, all different: the worst case for memos
python benchmarks/memory.py --seconds 3600            for an hour
python benchmarks/memory.py --layers 4                smaller networks: more of them in the same time
python benchmarks/memory.py --space                   networks of the space of examples/search.py, whose blocks repeat

All tables of `foretell` that remember something have a bound. A network here has up to 30 layers of random widths, so
that nearly every node, unit and row is new and the tables are always full. Devices, batch sizes and precisions vary
as well. The slope is that of a straight line through the memory after the first quarter, when the tables are full;
its doubt is two standard errors, from eight parts of the run. Exits 1 where the slope is surely above a bound.
"""

import argparse
import importlib.util
import itertools
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np

import foretell
from foretell.graph import Node, Tensor

ROOT = Path(__file__).parents[1]
DEVICES = ("h200", "h200", "l4", "a100", "h100-sxm", "rtx-4090")
DTYPES = ("fp16", "bf16", "fp32")
EVERY = 250  # predictions between two looks at the memory
MOST_BYTES = 16.0  # a prediction: 16 MiB in a million


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def random_network(rng: random.Random, layers: int) -> foretell.Graph:
    """Linear layers and activations of random widths."""
    width, rows = rng.randint(8, 4096), rng.choice((1, 16, 128))
    tensors = {"x": Tensor("x", (1, rows, width), kind="input", batch_axis=0)}
    nodes: list[Node] = []
    before = "x"
    for number in range(rng.randint(1 + layers // 5, layers)):
        name, kind = f"t{number}", rng.choice(("MatMul", "MatMul", "Relu", "Gelu", "Softmax", "LayerNormalization"))
        inputs: tuple[str, ...] = (before,)
        if kind == "MatMul":
            wider = rng.randint(8, 4096)
            tensors[f"w{number}"] = Tensor(f"w{number}", (width, wider), kind="parameter")
            inputs, width = (before, f"w{number}"), wider
        tensors[name] = Tensor(name, (1, rows, width), batch_axis=0)
        nodes.append(Node(name, kind, inputs, (name,)))
        before = name
    return foretell.Graph("random", tuple(nodes), tensors, ("x",), (before,), 1)


def space_networks(rng: random.Random) -> Iterator[foretell.Graph]:
    spec = importlib.util.spec_from_file_location("search", ROOT / "examples" / "search.py")
    assert spec is not None
    assert spec.loader is not None
    search: Any = importlib.util.module_from_spec(spec)
    sys.modules["search"] = search  # dataclasses look their module up
    spec.loader.exec_module(search)
    while True:
        yield search.build(search.draw(rng))


def questions(rng: random.Random, space: bool, layers: int) -> Iterator[tuple[foretell.Graph, dict[str, Any]]]:
    networks = space_networks(rng) if space else (random_network(rng, layers) for _ in itertools.count())
    for network in networks:
        options = {"device": rng.choice(DEVICES), "dtype": rng.choice(DTYPES), "batch_size": rng.randint(1, 512)}
        yield network, options


def slope(numbers: list[int], sizes: list[int]) -> float:
    return float(np.polyfit(numbers, sizes, 1)[0]) if len(numbers) > 1 else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--predictions", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--layers", type=int, default=30, help="the most layers of a network")
    parser.add_argument("--space", action="store_true")
    chosen = parser.parse_args()
    started, busy = time.monotonic(), time.process_time()
    numbers: list[int] = []
    sizes: list[int] = []
    errors, number, shown = 0, 0, started
    asked = itertools.islice(questions(random.Random(0), chosen.space, chosen.layers), chosen.predictions)
    for number, answer in enumerate(foretell.predict_many(asked), 1):
        errors += isinstance(answer, foretell.ForetellError)
        if number % EVERY == 0:
            numbers.append(number)
            sizes.append(resident_bytes())
            if time.monotonic() - shown > 60:
                shown = time.monotonic()
                print(f"{number:9,} predictions  {sizes[-1] / 2**20:7.1f} MiB", flush=True)
        if time.monotonic() - started > chosen.seconds:
            break
    first = len(numbers) // 4
    numbers, sizes = numbers[first:], sizes[first:]
    parts = np.array_split(np.arange(len(numbers)), 8)
    slopes = [slope([numbers[i] for i in part], [sizes[i] for i in part]) for part in parts]
    whole, doubt = slope(numbers, sizes), 2 * float(np.std(slopes)) / len(slopes) ** 0.5
    each_ms = (time.process_time() - busy) / max(number, 1) * 1e3
    print(
        f"{number:,} predictions, {errors} errors, {each_ms:.2f} ms of the processor each; after the first quarter "
        f"{min(sizes) / 2**20:.1f} to {max(sizes) / 2**20:.1f} MiB; slope {whole:+.1f} ± {doubt:.1f} bytes a "
        f"prediction: {whole * 1e6 / 2**20:+.1f} ± {doubt * 1e6 / 2**20:.1f} MiB in a million"
    )
    sys.exit(1 if whole - doubt > MOST_BYTES else 0)


if __name__ == "__main__":
    main()
