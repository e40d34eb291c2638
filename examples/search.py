"""Searches a space of networks for the best one that two GPUs run within a latency and a memory limit.

python examples/search.py                                   20,000 candidates, H200 and L4, both cores
python examples/search.py --candidates 2000 --limit-ms 4    fewer, and a tighter limit
python examples/search.py --out front.json                  writes the front; search_measure.py runs networks of it

The space is that of once-for-all networks (Cai et al., ICLR 2020, arXiv 1908.09791): a MobileNetV3 whose five stages
have 2 to 4 blocks, windows of 3, 5 or 7, widths of 3, 4 or 6 times their input, at 128 to 224 pixels: about 10^19
networks. Nothing is trained here: a proxy stands in for accuracy, the logarithm of the multiply-accumulates with a
bonus for depth and for resolution (`proxy_of`). Put your own predictor of accuracy there.

The search is regularized evolution (Real et al., AAAI 2019, arXiv 1802.01548), a generation at a time: parents are the
best of a random few, a child changes a few genes of one parent or mixes two, and those that break a limit on either GPU
are left out. Parents are chosen under a share of the latency limit that is drawn anew for each, so that the front is
known from the limit down to networks that are several times as fast. No graph is traced: each is written from its
genes. A generation is predicted with one call of `foretell.predict_many` for each GPU; the slowest GPU comes first,
and what breaks a limit there is not asked about on the others.
"""

import argparse
import json
import math
import os
import random
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import foretell
from foretell.graph import Node, Tensor

RESOLUTIONS = (128, 144, 160, 176, 192, 208, 224)
DEPTHS, KERNELS, WIDTHS = (2, 3, 4), (3, 5, 7), (3, 4, 6)
STAGES = ((24, 2, "Relu"), (40, 2, "Relu"), (80, 2, "HardSwish"), (112, 1, "HardSwish"), (160, 2, "HardSwish"))
GENERATION, SAMPLE, MUTATED = 500, 25, 0.1
TIGHTEST = 0.3  # the smallest share of the latency limit that parents are chosen under
DTYPE = "fp16"
METRICS = ("latency_ms", "memory_mib", "device_memory_mib")


@dataclass(frozen=True)
class Candidate:
    """The genes of one network: the window and the width of every block that a stage may have, and how many it has."""

    resolution: int
    depths: tuple[int, ...]
    kernels: tuple[int, ...]
    widths: tuple[int, ...]

    @property
    def network(self) -> "Candidate":
        """The same network with the genes of absent blocks at 0: two candidates that differ there alone are one."""
        most = max(DEPTHS)
        present = [block < depth for depth in self.depths for block in range(most)]
        kernels = tuple(kernel * here for kernel, here in zip(self.kernels, present))
        return Candidate(
            self.resolution, self.depths, kernels, tuple(width * here for width, here in zip(self.widths, present))
        )


def draw(rng: random.Random) -> Candidate:
    """A network at random."""
    blocks = len(STAGES) * max(DEPTHS)
    return Candidate(
        rng.choice(RESOLUTIONS), tuple(rng.choices(DEPTHS, k=len(STAGES))),
        tuple(rng.choices(KERNELS, k=blocks)), tuple(rng.choices(WIDTHS, k=blocks)),
    )  # fmt: skip


def network(number: int) -> foretell.Graph:
    """A network of the space by its number: what `search.toml` predicts a million of."""
    return build(draw(random.Random(number)))


def child_of(first: Candidate, second: Candidate, rng: random.Random) -> Candidate:
    """Genes of one or of both parents, a few of them changed."""
    other = second if rng.random() < 0.5 else first

    def mixed(name: str, choices: tuple[int, ...]) -> tuple[int, ...]:
        pairs = zip(getattr(first, name), getattr(other, name))
        return tuple(rng.choice(choices) if rng.random() < MUTATED else rng.choice(pair) for pair in pairs)

    resolution = rng.choice(RESOLUTIONS) if rng.random() < MUTATED else rng.choice((first, other)).resolution
    return Candidate(resolution, mixed("depths", DEPTHS), mixed("kernels", KERNELS), mixed("widths", WIDTHS))


class Builder:
    """Writes the graph of a network node by node, as `foretell.load_graph` would read it from PyTorch."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.tensors: dict[str, Tensor] = {}

    def tensor(self, name: str, shape: tuple[int, ...], kind: str = "activation") -> str:
        axis = 0 if kind in ("input", "activation") else None
        self.tensors[name] = Tensor(name, shape, "fp32", kind, axis)  # type: ignore[arg-type]
        return name

    def node(self, op: str, inputs: tuple[str, ...], shape: tuple[int, ...], **attributes: object) -> str:
        name = f"n{len(self.nodes)}"
        self.tensor(name, shape)
        self.nodes.append(Node(name, op, inputs, (name,), attributes))  # type: ignore[arg-type]
        return name

    def convolution(self, x: str, channels: int, kernel: int, stride: int = 1, groups: int = 1) -> str:
        """A convolution and its batch norm."""
        batch, inputs, height, width = self.tensors[x].shape
        name = f"c{len(self.nodes)}"
        weight = self.tensor(f"{name}.weight", (channels, inputs // groups, kernel, kernel), "parameter")
        shape = (batch, channels, -(-height // stride), -(-width // stride))
        y = self.node(
            "Conv", (x, weight), shape, kernel_shape=(kernel, kernel), strides=(stride, stride),
            pads=(kernel // 2,) * 4, dilations=(1, 1), group=groups,
        )  # fmt: skip
        norm = [
            self.tensor(f"{name}.{part}", (channels,), "parameter" if part in ("scale", "bias") else "buffer")
            for part in ("scale", "bias", "mean", "variance")
        ]
        return self.node("BatchNormalization", (y, *norm), shape)

    def activation(self, op: str, x: str) -> str:
        return self.node(op, (x,), self.tensors[x].shape)


def build(candidate: Candidate) -> foretell.Graph:
    """The graph of a candidate, at batch size 1."""
    net = Builder()
    x = net.tensor("x", (1, 3, candidate.resolution, candidate.resolution), "input")
    x = net.activation("HardSwish", net.convolution(x, 16, 3, 2))
    x = net.convolution(x, 16, 3, groups=16)
    for stage, (channels, first_stride, op) in enumerate(STAGES):
        for block in range(candidate.depths[stage]):
            gene, inputs = stage * max(DEPTHS) + block, net.tensors[x].shape[1]
            stride, wide = first_stride if block == 0 else 1, inputs * candidate.widths[gene]
            y = net.activation(op, net.convolution(x, wide, 1))
            y = net.activation(op, net.convolution(y, wide, candidate.kernels[gene], stride, wide))
            y = net.convolution(y, channels, 1)
            x = net.node("Add", (x, y), net.tensors[y].shape) if stride == 1 and inputs == channels else y
    x = net.activation("HardSwish", net.convolution(x, 960, 1))
    x = net.node("GlobalAveragePool", (x,), (1, 960, 1, 1))
    x = net.node("Reshape", (x,), (1, 960))
    weights = net.tensor("fc.weight", (1000, 960), "parameter"), net.tensor("fc.bias", (1000,), "parameter")
    x = net.node("Gemm", (x, *weights), (1, 1000), transB=1)
    name = f"{candidate.resolution}px-{''.join(map(str, candidate.depths))}"
    return foretell.Graph(name, tuple(net.nodes), net.tensors, ("x",), (x,), 1)


@dataclass(frozen=True)
class Limits:
    """What a network may take on every device."""

    latency_ms: float
    memory_mib: float

    def hold(self, prediction: foretell.Prediction) -> bool:
        """Whether a network is within them on one device."""
        assert prediction.device_memory_mib is not None
        return prediction.latency_ms.value <= self.latency_ms and prediction.device_memory_mib.value <= self.memory_mib


@dataclass(frozen=True)
class Judged:
    """A candidate, its proxy of accuracy, and what every device needs for it: by device, by quantity."""

    candidate: Candidate
    score: float
    predicted: dict[str, dict[str, dict[str, float]]]

    @property
    def slowest_ms(self) -> float:
        """The latency on the slowest device."""
        return max(by_metric["latency_ms"]["value"] for by_metric in self.predicted.values())

    @property
    def objectives(self) -> tuple[float, ...]:
        """What a network should have little of: negative proxy, then the latency on each device."""
        return (-self.score, *(by_metric["latency_ms"]["value"] for by_metric in self.predicted.values()))


def proxy_of(candidate: Candidate, macs: float) -> float:
    """What stands in for accuracy: arithmetic, depth and resolution.

    Without the last, all networks of a front have the smallest pictures (Tan and Le, ICML 2019, arXiv 1905.11946, find
    that accuracy saturates where one of the three grows alone).
    """
    return math.log2(macs) + 0.05 * sum(candidate.depths) + 2.0 * math.log2(candidate.resolution / min(RESOLUTIONS))


def judge(candidates: list[Candidate], devices: tuple[str, ...], batch_size: int, limits: Limits) -> list[Judged]:
    """Those of the candidates that are within the limits on all devices."""
    left = [(candidate, build(candidate)) for candidate in candidates]
    scores: dict[Candidate, float] = {}
    predicted: dict[Candidate, dict[str, dict[str, dict[str, float]]]] = {candidate: {} for candidate in candidates}
    for device in devices:
        answers = foretell.predict_many([graph for _, graph in left], device=device, batch_size=batch_size, dtype=DTYPE)
        within = []
        for (candidate, graph), answer in zip(left, answers):
            if isinstance(answer, foretell.ForetellError):
                raise answer
            if not limits.hold(answer):
                continue
            within.append((candidate, graph))
            scores[candidate] = proxy_of(candidate, answer.facts["macs"] / batch_size)
            values = {name: getattr(answer, name) for name in METRICS}
            predicted[candidate][device] = {
                name: {"value": one.value, "low": one.low, "high": one.high} for name, one in values.items()
            }
        left = within
    return [Judged(candidate, scores[candidate], predicted[candidate]) for candidate, _ in left]


def front_of(judged: list[Judged]) -> list[Judged]:
    """Those that no other beats in proxy and in the latency on each device, the best proxy first."""
    front: list[Judged] = []
    for one in sorted(judged, key=lambda one: one.objectives):  # who comes later cannot beat who came before
        if not any(all(a <= b for a, b in zip(better.objectives, one.objectives)) for better in front):
            front.append(one)
    return front


def spread(front: list[Any], count: int) -> list[Any]:
    """So many networks of a front, from its best to its fastest."""
    if len(front) <= count:
        return front
    return [front[round(number * (len(front) - 1) / max(count - 1, 1))] for number in range(count)]


def parent_of(population: list[Judged], limits: Limits, rng: random.Random) -> Judged:
    """The best of a random few under a share of the latency limit; the fastest of them where none is."""
    few, share_ms = rng.sample(population, SAMPLE), limits.latency_ms * rng.uniform(TIGHTEST, 1.0)
    fast = [one for one in few if one.slowest_ms <= share_ms]
    return max(fast, key=lambda one: one.score) if fast else min(few, key=lambda one: one.slowest_ms)


def search(
    candidates: int, devices: tuple[str, ...], batch_size: int, limits: Limits, workers: int, seed: int
) -> list[Judged]:
    """Evolve a population; all networks that are within the limits."""
    rng, started = random.Random(seed), time.perf_counter()
    seen: set[Candidate] = set()
    found: list[Judged] = []
    population: list[Judged] = []
    with ProcessPoolExecutor(workers) as pool:
        while len(seen) < candidates:
            fresh: dict[Candidate, None] = {}
            wanted = min(GENERATION, candidates - len(seen))
            while len(fresh) < wanted:
                if len(population) < SAMPLE:
                    candidate = draw(rng)
                else:
                    first, second = (parent_of(population, limits, rng).candidate for _ in range(2))
                    candidate = child_of(first, second, rng)
                if candidate.network not in seen:
                    seen.add(candidate.network)
                    fresh[candidate] = None
            parts = [list(fresh)[number::workers] for number in range(workers)]
            asked = [pool.submit(judge, part, devices, batch_size, limits) for part in parts]
            generation = [one for future in asked for one in future.result()]
            found += generation
            population = (population + generation)[-2 * GENERATION :]  # the oldest go
            taken_s = time.perf_counter() - started
            best = max((one.score for one in found), default=math.nan)
            print(
                f"{len(seen):6,} candidates  {len(seen) / taken_s:6.1f} a second  {len(found):6,} within the limits  "
                f"best {best:.3f}",
                flush=True,
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, default=20_000)
    parser.add_argument("--devices", default="l4,h200", help="the slowest first")
    parser.add_argument("--limit-ms", type=float, default=6.0, help="on each device, for a batch")
    parser.add_argument("--limit-mib", type=float, default=1_300.0, help="as nvidia-smi shows it")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a JSON file of the front")
    parser.add_argument("--picks", type=int, default=10_000, help="write only so many networks, spread over the front")
    chosen = parser.parse_args()
    devices, limits = tuple(chosen.devices.split(",")), Limits(chosen.limit_ms, chosen.limit_mib)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # one process a core
    started = time.perf_counter()
    found = search(chosen.candidates, devices, chosen.batch_size, limits, chosen.workers, chosen.seed)
    front, took_s = front_of(found), time.perf_counter() - started
    print(
        f"\n{len(found):,} of {chosen.candidates:,} are within {limits.latency_ms:g} ms and {limits.memory_mib:g} MiB"
    )
    print(f"{len(front)} of them are the front, {took_s:.0f} s; its best:")
    print(f"proxy   pixels  depths  {'  '.join(f'{device:>8}' for device in devices)}  MiB")
    for one in front[:10]:
        times = "  ".join(f"{one.predicted[device]['latency_ms']['value']:5.2f} ms" for device in devices)
        depths = "".join(map(str, one.candidate.depths))
        memory = max(by_metric["device_memory_mib"]["value"] for by_metric in one.predicted.values())
        print(f"{one.score:6.3f}  {one.candidate.resolution:6}  {depths:>6}  {times}  {memory:,.0f}")
    if chosen.out is not None:
        rows = [
            {"genes": asdict(one.candidate.network), "proxy": one.score, "predicted": one.predicted}
            for one in spread(front, chosen.picks)
        ]
        written: dict[str, Any] = {
            "candidates": chosen.candidates, "within": len(found), "seconds": round(took_s),
            "batch_size": chosen.batch_size, "dtype": DTYPE, "limits": asdict(limits), "of": len(front), "front": rows,
        }  # fmt: skip
        chosen.out.write_text(json.dumps(written, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
