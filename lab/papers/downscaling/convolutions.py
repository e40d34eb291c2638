"""Lab: the operator study of the thesis (section 3.4.1), from traced convolutions: ``…downscaling.convolutions``.

The thesis varies one convolution over batch sizes, strides, kernels and filters, forward and backward, in single and
half precision, and draws what it reaches into a roofline. Here every traced plain 2-D convolution of a store is one
point: networks and benches of random operators, not a grid. Two tables are printed:

1. by each axis, the median rate and the median share of the roofline, min(peak, intensity × bandwidth), where the bytes
   are those that must move at least (no counter was read), and peaks are those measured on the device;
2. pairs that differ in one axis and in nothing else: in how many the second has the higher rate, and by how much.
"""

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

from foretell.devices import find_device
from foretell.devices.ceilings import Ceilings, load_ceilings
from foretell.errors import ForetellError
from foretell.graph import Graph
from foretell.records import Target, Workload
from foretell.training.examples.graphs import GraphKey, read_graphs
from foretell.training.examples.link import Trace, read_traces_of
from foretell.training.examples.workloads import call_nodes, measured_rows, workload_of
from foretell.units import GIGA, MEGA, TERA

PHASES = ("forward", "backward")
_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
_LEAST_US = 2.0  # a shorter kernel measures its launch
_LEAST = 8  # fewer points or pairs say nothing


@dataclass(frozen=True)
class Convolution:
    """One setting of a plain convolution in one phase; ``us`` is the mean traced time of those that are equal."""

    phase: str
    dtype: str
    channels_last: bool
    batch: int
    channels: int
    rows: int
    columns: int
    filters: int
    kernel: int
    stride: int
    padding: tuple[int, ...]
    pixels: int  # of one picture of the output
    us: float = 0.0

    @property
    def is_half(self) -> bool:
        """Whether it runs in 16 bits."""
        return self.dtype != "fp32"

    @property
    def flops(self) -> float:
        """Twice the multiplications; backward has two products of the size of the forward one."""
        forward = 2.0 * self.batch * self.pixels * self.filters * self.channels * self.kernel**2
        return forward * (2 if self.phase == "backward" else 1)

    @property
    def bytes(self) -> float:
        """What must be read and written at least: backward reads the gradient, inputs and weights, and writes two."""
        reads = self.batch * self.channels * self.rows * self.columns
        weights = self.filters * self.channels * self.kernel**2
        outputs = self.batch * self.pixels * self.filters
        if self.phase == "backward":
            return float(_BYTES[self.dtype] * (2 * reads + 2 * weights + outputs))
        return float(_BYTES[self.dtype] * (reads + weights + outputs))

    @property
    def tflops(self) -> float:
        """The rate that it reaches."""
        return self.flops / self.us * MEGA / TERA

    def attainable(self, ceilings: Ceilings) -> float:
        """The roofline of its intensity, in TFLOP/s; single precision may use TF32, as PyTorch's convolutions do."""
        peak = ceilings.tflops["tf32" if self.dtype == "fp32" else self.dtype]
        bandwidth = ceilings.dram_gb_per_s or 0.0
        return min(peak, self.flops / self.bytes * bandwidth * GIGA / TERA)


def convolutions_of(workload: Workload, trace: Trace, nodes: Mapping[int, int]) -> Iterator[Convolution]:
    """The plain 2-D convolutions of a traced workload, with their times."""
    spent: Counter[tuple[str, int]] = Counter()
    for call, busy_us in zip(trace.calls, trace.busy_us, strict=True):
        spent[call.phase, nodes.get(call.op_index, -1)] += busy_us  # type: ignore[assignment]
    for position, found in plain_convolutions(workload.graph, workload.dtype):
        for phase in PHASES:
            us = spent[phase, position]
            if us >= _LEAST_US:  # NaN, where kernels overlap, is not
                yield replace(found, phase=phase, us=us, channels_last=workload.channels_last)


def plain_convolutions(graph: Graph, dtype: str) -> Iterator[tuple[int, Convolution]]:
    """The 2-D convolutions of a graph with square windows, one stride and one group, by the position of their node."""
    for position, node in enumerate(graph.nodes):
        if node.op != "Conv":
            continue
        read, weight = (graph.tensors[name].shape for name in node.inputs[:2])
        strides, dilations = node.integers("strides") or (1, 1), node.integers("dilations") or (1, 1)
        if len(read) != 4 or read[1] != weight[1] or weight[2] != weight[3] or len(set(strides)) > 1:
            continue
        if set(dilations) == {1}:
            padding, written = node.integers("pads") or (0, 0), graph.tensors[node.outputs[0]].shape
            sizes = (*read, weight[0], weight[2], strides[0])
            yield position, Convolution("forward", dtype, False, *sizes, padding, written[2] * written[3])


def read_convolutions(store: Path, device: str) -> list[Convolution]:
    """Every traced convolution of a store; equal ones once, with their mean time."""
    traces, links = {trace.workload_id: trace for trace in read_traces_of(store)}, call_nodes(store)
    waiting: defaultdict[GraphKey, list[Mapping[str, Any]]] = defaultdict(list)
    for row in measured_rows(store).values():
        if row["workload_id"] in traces and row["workload_id"] in links and row["dtype"] in _BYTES:
            waiting[GraphKey.of(row)].append(row)
    target, times = Target(find_device(device)), defaultdict[Convolution, list[float]](list)
    for key, _, graph in read_graphs(store, list(waiting)):
        for row in waiting[key]:
            try:
                workload = workload_of(row, graph, target)
            except ForetellError:
                continue  # a graph that cannot take the batch size
            own = convolutions_of(workload, traces[row["workload_id"]], links[row["workload_id"]])
            for found in own:
                times[replace(found, us=0.0)].append(found.us)
    return [replace(found, us=sum(us) / len(us)) for found, us in times.items()]


@dataclass(frozen=True)
class Pair:
    """Two convolutions that differ in one axis: which values the statement is about."""

    text: str
    axis: str
    matches: Callable[[Any, Any], bool]
    least_us: float = _LEAST_US  # of the first


PAIRS = (
    Pair("half over single precision", "dtype", lambda a, b: a == "fp32" and b != "fp32"),
    Pair("… that take 50 µs or more", "dtype", lambda a, b: a == "fp32" and b != "fp32", 50.0),
    Pair("batch 32 → 64", "batch", lambda a, b: (a, b) == (32, 64)),
    Pair("batch × 2", "batch", lambda a, b: b == 2 * a),
    Pair("stride 1 → 2", "stride", lambda a, b: (a, b) == (1, 2)),
    Pair("stride 2 → 3 … 5", "stride", lambda a, b: a == 2 and 3 <= b <= 5),
    Pair("kernel 3 → 5", "kernel", lambda a, b: (a, b) == (3, 5)),
    Pair("kernel 5 → 7", "kernel", lambda a, b: (a, b) == (5, 7)),
    Pair("filters × 2", "filters", lambda a, b: b == 2 * a),
    Pair("filters × 2, from 56 … 112", "filters", lambda a, b: b == 2 * a and 56 <= a <= 112),
)


def rate_ratios(found: Sequence[Convolution], pair: Pair, phase: str, half: bool | None) -> list[float]:
    """The rate of the second over that of the first of all pairs that differ in one axis."""
    groups: defaultdict[Hashable, list[Convolution]] = defaultdict(list)
    for one in found:
        if one.phase == phase and half in (None, one.is_half):
            left_out = {pair.axis, "us", *_FOLLOWS.get(pair.axis, ())}
            groups[tuple((name, value) for name, value in vars(one).items() if name not in left_out)].append(one)
    ratios = []
    for members in groups.values():
        for first, second in (order for both in combinations(members, 2) for order in (both, both[::-1])):
            if first.us >= pair.least_us and pair.matches(getattr(first, pair.axis), getattr(second, pair.axis)):
                ratios.append(second.tflops / first.tflops)
    return ratios


# what changes with an axis: a larger window has a wider rim, so that the output stays; a stride shrinks the output
_FOLLOWS: Mapping[str, tuple[str, ...]] = {"kernel": ("padding",), "stride": ("pixels",)}


def tables(found: Sequence[Convolution], ceilings: Ceilings) -> Iterator[str]:
    """Both tables, line by line, as Markdown."""
    yield f"{len(found):,} settings: {_counted(found)}\n"
    yield "| axis | value | " + " | ".join(_heads()) + " |"
    yield "|---|---|" + "---:|" * len(_heads())
    for axis in ("batch", "stride", "kernel", "filters"):
        for text, low, high in _BINS[axis]:
            own = [one for one in found if low <= getattr(one, axis) <= high]
            cells = [_cell(own, phase, half, ceilings) for phase in PHASES for half in (False, True)]
            yield f"| {axis} | {text} | " + " | ".join(cells) + " |"
    yield ""
    yield "| pairs that differ in | " + " | ".join(_heads()) + " |"
    yield "|---|" + "---:|" * len(_heads())
    for pair in PAIRS:
        halves = (False, True) if pair.axis != "dtype" else (None, None)
        cells = [_ratio_cell(rate_ratios(found, pair, phase, half)) for phase in PHASES for half in halves]
        if pair.axis == "dtype":  # one number for both columns
            cells[1] = cells[3] = "–"
        yield f"| {pair.text} | " + " | ".join(cells) + " |"


_BINS: Mapping[str, Sequence[tuple[str, int, int]]] = {
    "batch": [("1", 1, 1), ("2 – 15", 2, 15), ("16 – 31", 16, 31), ("32 – 63", 32, 63), ("64 and more", 64, 1 << 30)],
    "stride": [("1", 1, 1), ("2", 2, 2), ("3 – 5", 3, 5)],
    "kernel": [("1", 1, 1), ("3", 3, 3), ("5", 5, 5), ("7", 7, 7)],
    "filters": [("up to 55", 1, 55), ("56 – 111", 56, 111), ("112 – 223", 112, 223), ("224 – 511", 224, 511),
                ("512 and more", 512, 1 << 30)],
}  # fmt: skip


def _heads() -> list[str]:
    return [f"{phase}, {kind}" for phase in PHASES for kind in ("single", "half")]


def _cell(own: Iterable[Convolution], phase: str, half: bool, ceilings: Ceilings) -> str:
    chosen = [one for one in own if one.phase == phase and one.is_half == half]
    if len(chosen) < _LEAST:
        return "–"
    share = median(one.tflops / one.attainable(ceilings) for one in chosen)
    return f"{median(one.tflops for one in chosen):.3g} TFLOP/s, {100 * share:.0f} % of the roofline ({len(chosen)})"


def _ratio_cell(ratios: Sequence[float]) -> str:
    if len(ratios) < _LEAST:
        return f"{len(ratios)} pairs"
    return f"higher in {sum(ratio > 1 for ratio in ratios)} of {len(ratios)}, {median(ratios):.2f} times"


def _counted(found: Sequence[Convolution]) -> str:
    counts = Counter((one.phase, "half" if one.is_half else "single") for one in found)
    return ", ".join(f"{phase} in {kind} precision {count:,}" for (phase, kind), count in sorted(counts.items()))


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, default=Path("data"))
    parser.add_argument("--device", default="h200")
    options = parser.parse_args()
    for line in tables(read_convolutions(options.store, options.device), load_ceilings()[options.device]):
        sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
