"""Searches a space of networks for the best one that two GPUs run within a latency and a memory limit.

python examples/search.py                                   20,000 candidates, H200 and L4, both cores
python examples/search.py --candidates 2000 --limit-ms 0.6  fewer, and a tighter limit

The space is that of once-for-all networks (Cai et al., ICLR 2020, arXiv 1908.09791): a MobileNetV3 whose five stages
have 2 to 4 blocks, windows of 3, 5 or 7, widths of 3, 4 or 6 times their input, at 128 to 224 pixels: about 10^19
networks. Nothing is trained here: a proxy stands in for accuracy, the logarithm of the multiply-accumulates with a
bonus for depth. Put your own predictor of accuracy there.

The search is regularized evolution (Real et al., AAAI 2019, arXiv 1802.01548), a generation at a time: parents are the
best of a random few, a child changes a few genes of one parent or mixes two, and those that break a limit on either GPU
are left out. All candidates of a generation are predicted with one call of `foretell.predict_many` for each GPU.
"""

import argparse
import math
import os
import random
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import foretell
from foretell.graph import Node, Tensor

RESOLUTIONS = (128, 144, 160, 176, 192, 208, 224)
DEPTHS, KERNELS, WIDTHS = (2, 3, 4), (3, 5, 7), (3, 4, 6)
STAGES = ((24, 2, "Relu"), (40, 2, "Relu"), (80, 2, "HardSwish"), (112, 1, "HardSwish"), (160, 2, "HardSwish"))
GENERATION, SAMPLE, MUTATED = 500, 25, 0.1


@dataclass(frozen=True)
class Candidate:
    """The genes of one network: the window and the width of every block that a stage may have, and how many it has."""

    resolution: int
    depths: tuple[int, ...]
    kernels: tuple[int, ...]
    widths: tuple[int, ...]


def draw(rng: random.Random) -> Candidate:
    """A network at random."""
    blocks = len(STAGES) * max(DEPTHS)
    return Candidate(
        rng.choice(RESOLUTIONS), tuple(rng.choices(DEPTHS, k=len(STAGES))),
        tuple(rng.choices(KERNELS, k=blocks)), tuple(rng.choices(WIDTHS, k=blocks)),
    )  # fmt: skip


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
class Judged:
    """A candidate, its proxy of accuracy, and what the GPUs need for it: the worst of both."""

    candidate: Candidate
    score: float
    latency_ms: tuple[float, ...]
    memory_mib: float


def judge(candidates: list[Candidate], devices: tuple[str, ...], batch_size: int) -> list[Judged]:
    """Predict all candidates on all devices."""
    graphs = [build(candidate) for candidate in candidates]
    by_device = [
        list(foretell.predict_many(graphs, device=device, batch_size=batch_size, dtype="fp16")) for device in devices
    ]
    judged = []
    for candidate, answers in zip(candidates, zip(*by_device)):
        failed = [answer for answer in answers if isinstance(answer, foretell.ForetellError)]
        if failed:
            raise failed[0]
        macs = answers[0].facts["macs"] / batch_size
        score = math.log2(macs) + 0.05 * sum(candidate.depths)
        memory = max(answer.device_memory_mib.value for answer in answers)
        judged.append(Judged(candidate, score, tuple(answer.latency_ms.value for answer in answers), memory))
    return judged


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, default=20_000)
    parser.add_argument("--devices", default="h200,l4")
    parser.add_argument("--limit-ms", type=float, default=6.0, help="on each device, for a batch")
    parser.add_argument("--limit-mib", type=float, default=1_300.0, help="as nvidia-smi shows it")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    rng, devices = random.Random(chosen.seed), tuple(chosen.devices.split(","))
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # one process a core
    started, seen = time.perf_counter(), dict[Candidate, Judged]()
    population: list[Judged] = []
    with ProcessPoolExecutor(chosen.workers) as pool:
        while len(seen) < chosen.candidates:
            fresh = dict[Candidate, None]()
            while len(fresh) < min(GENERATION, chosen.candidates - len(seen)):
                if len(population) < SAMPLE:
                    candidate = draw(rng)
                else:
                    parents = [max(rng.sample(population, SAMPLE), key=lambda one: one.score) for _ in range(2)]
                    candidate = child_of(parents[0].candidate, parents[1].candidate, rng)
                if candidate not in seen:
                    fresh[candidate] = None
            parts = [list(fresh)[number :: chosen.workers] for number in range(chosen.workers)]
            asked = [pool.submit(judge, part, devices, chosen.batch_size) for part in parts]
            generation = [one for future in asked for one in future.result()]
            seen.update((one.candidate, one) for one in generation)
            within = [
                one
                for one in generation
                if max(one.latency_ms) <= chosen.limit_ms and one.memory_mib <= chosen.limit_mib
            ]
            population = (population + within)[-2 * GENERATION :]  # the oldest go
            taken = time.perf_counter() - started
            best = max(population, key=lambda one: one.score, default=None)
            shown = f"best {best.score:.3f}" if best else "none is within the limits yet"
            print(f"{len(seen):6,} candidates  {len(seen) / taken:6.1f} a second  {shown}", flush=True)
    within = [one for one in seen.values() if max(one.latency_ms) <= chosen.limit_ms]
    within = [one for one in within if one.memory_mib <= chosen.limit_mib]
    print(f"\n{len(within):,} of {len(seen):,} are within {chosen.limit_ms:g} ms and {chosen.limit_mib:g} MiB")
    print(f"proxy   pixels  depths  {'  '.join(f'{device:>8}' for device in devices)}  MiB")
    for one in sorted(within, key=lambda judged: -judged.score)[:10]:
        times = "  ".join(f"{latency_ms:5.2f} ms" for latency_ms in one.latency_ms)
        depths = "".join(map(str, one.candidate.depths))
        print(f"{one.score:6.3f}  {one.candidate.resolution:6}  {depths:>6}  {times}  {one.memory_mib:,.0f}")


if __name__ == "__main__":
    main()
