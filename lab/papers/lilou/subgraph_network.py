"""Lab: LILOU's sub-graph runtime analyser: a GAT that predicts the latency and the kernel of nodes that run as one.

Q. Liang, H. Wang, P. Shenoy: three GAT layers of 256 channels over the undirected sub-graph, with the features of the
device beside those of every node; the mean over nodes; one linear layer for both tasks; the root of the mean squared
error of the latency plus the cross-entropy of the kernel; learning rate 5e-4, 512 sub-graphs a batch, 100 epochs. The
paper leaves open what is decided here: the latency is a standardised logarithm; a sub-graph that stands for several
equal ones has the square root of their number as its weight; the best epoch has the highest share of correctly
predicted kernels less the error of the latency. Products are in bfloat16 while fitting, weights and predictions are
not. The rest is in `lab.papers.lilou.fitting`. For a sub-graph of one node, a GAT layer is a linear layer.

Ours: what is learned is the latency over a time that is known before, the bound of the sub-graph; and sums of
sub-graphs, the latency of whole workloads, teach beside single ones, or alone where no single one was measured.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.papers.graph_networks.forward import Inputs
from lab.papers.graph_networks.tensors import DeviceGraphs, Tensor, Tensors, functional, torch
from lab.papers.lilou.features import SIZES, NodeTable
from lab.papers.lilou.fitting import NODE_WIDTH, Gat, Numbers, Record, Scale, Schedule, fit, node_rows, place

MOST = 5  # number of likeliest kernels
_PREDICTED_AT_ONCE = 65_536
_WEIGHT = "weight."

Log = Callable[[str], None]
Values = NDArray[np.float64]
Arrays = dict[str, NDArray[Any]]


NODES, BOUND, SHAPES = "nodes", "bound", "shapes"


@dataclass(frozen=True)
class SubgraphFit:
    """A network and how it is fitted.

    ``known`` is what it knows of a sub-graph: the paper's columns (nodes); also the bound, and then it learns the ratio
    to it; or also all that foretell knows of a unit (shapes). ``sums`` is the number of workloads in each step whose
    sums are learned; ``dropout`` is the share of a sub-graph's columns that are left out while fitting.
    """

    gat: Gat
    schedule: Schedule
    known: str = NODES
    sums: int = 0
    half: bool = True
    dropout: float = 0.0


PUBLISHED = SubgraphFit(Gat(width=256, layers=3, direction="mutual"), Schedule(rate=5e-4, batch=512, epochs=100))


@dataclass(frozen=True)
class Subgraphs:
    """Sub-graphs: their nodes, the edges between them (numbered within each), and the device of each.

    The network predicts multiples of ``base_us``: 1 µs, or the bound of each.
    """

    nodes: NodeTable
    edges: NDArray[np.int64]
    node_counts: Numbers
    edge_counts: Numbers
    device: NDArray[np.float32]
    base_us: Values

    def __len__(self) -> int:
        return len(self.node_counts)

    @classmethod
    def of_nodes(cls, nodes: NodeTable, device: NDArray[np.float32], base_us: Values | None = None) -> "Subgraphs":
        """Sub-graphs of one node each, all on one device."""
        count = len(nodes)
        ones, none = np.ones(count, np.int64), np.zeros(count, np.int64)
        devices = np.broadcast_to(device, (count, len(device)))
        return cls(
            nodes, np.zeros((2, 0), np.int64), ones, none, devices, np.ones(count) if base_us is None else base_us
        )

    def on(self, scales: tuple[Scale, Scale], device: str) -> DeviceGraphs:
        """The same on a GPU, with nodes and devices standardised."""
        counts = (self.node_counts, self.edge_counts)
        return place(self.nodes, scales[0], self.edges, counts, scales[1].scaled(self.device), device)


@dataclass(frozen=True)
class Measured:
    """For each sub-graph the time, the code of its kernel (below ``classes``), and how many it stands for."""

    time_us: Values
    label: Numbers
    counts: Values
    classes: int


@dataclass(frozen=True)
class Sums:
    """Measured sums of sub-graphs: ``members`` of all, one sum after the other, each so many times (``counts``).

    ``total_us`` is what each took, ``weights`` how much it counts; sums of one ``owner`` are learned in one step.
    """

    members: Numbers
    counts: Values
    lengths: Numbers
    total_us: Values
    weights: Values
    owner: Numbers

    def __len__(self) -> int:
        return len(self.lengths)

    def of(self, numbers: Numbers) -> "Sums":
        """Some of the sums."""
        starts, lengths = np.cumsum(self.lengths) - self.lengths, self.lengths[numbers]
        rows = np.repeat(starts[numbers] - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
        each = (self.total_us[numbers], self.weights[numbers], self.owner[numbers])
        return Sums(self.members[rows], self.counts[rows], lengths, *each)

    def sums_of(self, times_us: Values) -> Values:
        """The sums of some times of all sub-graphs."""
        owner = np.repeat(np.arange(len(self)), self.lengths)
        return np.asarray(np.bincount(owner, times_us[self.members] * self.counts, len(self)), np.float64)

    def error(self, times_us: Values) -> float:
        """The mean error of the sums, each at most 1."""
        off = np.abs(self.sums_of(times_us) / self.total_us - 1.0).clip(max=1.0)
        return float(off @ self.weights / self.weights.sum())


class SubgraphNetwork:
    """The network, on a device."""

    def __init__(
        self, scales: tuple[Scale, Scale], shift: float, spread: float, classes: int, settings: SubgraphFit, device: str
    ) -> None:
        self.scales = scales
        self.shift, self.spread = shift, spread
        self._settings, self._device = settings, device
        # the scale of sizes tells how many columns a node has
        width = NODE_WIDTH - len(SIZES) + len(scales[0].mean) + len(scales[1].mean)
        self._gat: Tensors = settings.gat.draw(width, device)
        self._out: Any = torch.nn.Linear(settings.gat.out_width, 1 + classes).to(device)

    @property
    def learned(self) -> list[Tensor]:
        """All parameters."""
        return [*self._gat.values(), *self._out.parameters()]

    def saved(self) -> Arrays:
        """What `adopt` needs of it."""
        facts = {"shift": np.array(self.shift), "spread": np.array(self.spread), "sizes": np.array(self.sizes)}
        weights = {f"{_WEIGHT}{n}": tensor.detach().cpu().numpy() for n, tensor in enumerate(self.learned)}
        scales = {f"{name}{n}": getattr(s, name) for n, s in enumerate(self.scales) for name in ("mean", "deviation")}
        return {**facts, **weights, **scales}

    @property
    def sizes(self) -> int:
        """The number of columns of a node."""
        return len(self.scales[0].mean)

    def adopt(self, saved: Arrays) -> None:
        """Begin with the weights of another network; columns of whole sub-graphs that it did not have begin at zero."""
        self.shift, self.spread = float(saved["shift"]), float(saved["spread"])
        nodes, whole = (Scale(saved[f"mean{n}"], saved[f"deviation{n}"]) for n in range(2))
        new = len(self.scales[1].mean) - len(whole.mean)
        plain = np.zeros(new, np.float32), np.ones(new, np.float32)
        pairs = zip((whole.mean, whole.deviation), plain, strict=True)
        self.scales = nodes, Scale(*(np.concatenate(pair) for pair in pairs))
        with torch.no_grad():
            for number, tensor in enumerate(self.learned):
                value = torch.from_numpy(saved[f"{_WEIGHT}{number}"]).to(tensor.device)
                tensor.zero_()
                tensor[: len(value)] = value

    def forward(self, graphs: DeviceGraphs, numbers: Numbers) -> Tensor:
        """For each sub-graph its standardised log latency, and a logit for each kernel."""
        inputs: Inputs = graphs.pick(numbers)
        x = self._settings.gat.embed(self._gat, node_rows(inputs, inputs.whole), inputs)
        sums = x.new_zeros(len(numbers), x.shape[1]).index_add_(0, inputs.graph_index, x)
        nodes = torch.from_numpy(graphs.node_counts[numbers]).to(x.device).unsqueeze(1)
        return self._out(functional.dropout(sums / nodes, self._settings.dropout, training=torch.is_grad_enabled()))

    def predict(self, subgraphs: Subgraphs) -> tuple[Values, NDArray[np.int16]]:
        """Microseconds, and the codes of the likeliest kernels, best first."""
        ratio, likeliest = self.predict_placed(subgraphs.on(self.scales, self._device), np.arange(len(subgraphs)))
        return ratio * subgraphs.base_us, likeliest

    def ratios(self, out: Tensor) -> Tensor:
        """What `forward` says of the latency as multiples of the base times."""
        return torch.exp(out[:, 0] * self.spread + self.shift)

    def predict_placed(self, graphs: DeviceGraphs, numbers: Numbers) -> tuple[Values, NDArray[np.int16]]:
        """The same for sub-graphs that are on the device already; times as multiples of the base times."""
        times, likeliest = [], []
        with torch.no_grad():
            for start in range(0, len(numbers), _PREDICTED_AT_ONCE):
                out = self.forward(graphs, numbers[start : start + _PREDICTED_AT_ONCE])
                most = min(MOST, out.shape[1] - 1)
                times.append(np.exp(out[:, 0].double().cpu().numpy() * self.spread + self.shift))
                likeliest.append(out[:, 1:].topk(most, dim=1).indices.cpu().numpy().astype(np.int16))
        return np.concatenate(times), np.concatenate(likeliest)


class _Problem:
    """What is minimised: the loss of single sub-graphs, of sums of them, or of both."""

    def __init__(
        self, network: SubgraphNetwork, subgraphs: Subgraphs, measured: Measured, truth: Values, sums: Sums | None,
        settings: SubgraphFit, device: str,
    ) -> None:  # fmt: skip
        self.graphs = subgraphs.on(network.scales, device)
        self._network, self._measured, self._settings, self._sums = network, measured, settings, sums
        self._subgraphs, self._device = subgraphs, device
        self._truth, self._weight = self._tensor(truth), self._tensor(np.sqrt(measured.counts))
        self._label = torch.from_numpy(measured.label).to(device)
        self._base = self._tensor(subgraphs.base_us)
        self._random, self._waiting = np.random.default_rng(settings.schedule.seed), np.zeros(0, np.int64)

    def _tensor(self, values: Values) -> Tensor:
        return torch.from_numpy(np.asarray(values, np.float32)).to(self._device)

    def loss(self, numbers: Numbers) -> Tensor:
        """The loss of some sub-graphs and of the next sums; without single sub-graphs, of these sums."""
        if self._sums is None:
            return self._loss_of_units(numbers)
        if not len(self._truth):
            return self._loss_of_sums(self._sums.of(np.flatnonzero(np.isin(self._sums.owner, numbers))))
        return self._loss_of_units(numbers) + self._loss_of_sums(self._sums.of(self._next()))

    def _next(self) -> Numbers:
        assert self._sums is not None
        if len(self._waiting) < self._settings.sums:
            self._waiting = self._random.permutation(len(self._sums))
        chosen, self._waiting = np.split(self._waiting, [self._settings.sums])
        return chosen

    def _out(self, numbers: Numbers) -> Tensor:
        kind = self._device.partition(":")[0]
        with torch.autocast(kind, torch.bfloat16, enabled=self._settings.half):
            return self._network.forward(self.graphs, numbers).float()

    def _loss_of_units(self, numbers: Numbers) -> Tensor:
        rows = torch.from_numpy(numbers).to(self._device)
        out, share = self._out(numbers), self._weight[rows] / self._weight[rows].sum()
        squares = (out[:, 0] - self._truth[rows]) ** 2
        loss = ((squares * share).sum() + 1e-12).sqrt()  # the root has no gradient at 0
        if not self._measured.classes:
            return loss
        entropy = functional.cross_entropy(out[:, 1:], self._label[rows], reduction="none")
        return loss + (entropy * share).sum()

    def _loss_of_sums(self, sums: Sums) -> Tensor:
        """The mean |log(sum / measured)|; a sub-graph that is in several sums is computed once."""
        members, place = np.unique(sums.members, return_inverse=True)
        times_us = self._network.ratios(self._out(members)) * self._base[torch.from_numpy(members).to(self._device)]
        rows = torch.from_numpy(place.reshape(-1)).to(self._device)
        owner = torch.from_numpy(np.repeat(np.arange(len(sums)), sums.lengths)).to(self._device)
        totals = times_us.new_zeros(len(sums)).index_add_(0, owner, times_us[rows] * self._tensor(sums.counts))
        weights = self._tensor(sums.weights)
        off = (totals / self._tensor(sums.total_us)).log().abs()
        return (off * weights).sum() / weights.sum()

    def score(self, validation: Numbers) -> float:
        """The share of kernels told right less the error of the latency."""
        ratio, likeliest = self._network.predict_placed(self.graphs, validation)
        measured = self._measured
        time_us = ratio * self._subgraphs.base_us[validation]
        error = np.abs(time_us / measured.time_us[validation] - 1.0).clip(max=1.0)
        counts = measured.counts[validation]
        if not measured.classes:
            return 1.0 - float(error @ counts / counts.sum())
        return float(((likeliest[:, 0] == measured.label[validation]) - error) @ counts / counts.sum())

    def score_of(self, sums: Sums) -> float:
        """1 less the mean error of some sums."""
        members = np.unique(sums.members)
        times_us = np.zeros(len(self._subgraphs))
        ratio, _ = self._network.predict_placed(self.graphs, members)
        times_us[members] = ratio * self._subgraphs.base_us[members]
        return 1.0 - sums.error(times_us)


def fit_subgraph_network(
    subgraphs: Subgraphs, measured: Measured, training: Numbers, validation: Numbers, settings: SubgraphFit,
    device: str, seconds: float | None = None, log: Log = lambda _: None, sums: tuple[Sums, Sums] | None = None,
    start: Arrays | None = None,
) -> tuple[SubgraphNetwork, list[Record]]:  # fmt: skip
    """Fit a network to the sub-graphs ``training``; ``validation`` chooses the best epoch.

    ``sums`` are those to learn and those that choose the epoch instead of single sub-graphs; ``start`` is a saved
    network to begin with.
    """
    learned = training if sums is None else np.concatenate([training, sums[0].members])
    is_learned = np.zeros(len(subgraphs), bool)
    is_learned[learned] = True
    scales = (
        Scale.of(subgraphs.nodes.sizes[np.repeat(is_learned, subgraphs.node_counts)]),
        Scale.of(subgraphs.device[is_learned]),
    )
    logs = np.log(measured.time_us / subgraphs.base_us[: len(measured.time_us)])
    shift, spread = (float(logs[training].mean()), float(max(logs[training].std(), 1e-6))) if len(training) else (0, 1)
    if sums is not None and not len(training):
        shift = float(np.median(np.log(sums[0].total_us / sums[0].sums_of(subgraphs.base_us))))
    schedule = replace(settings.schedule, seconds=seconds)
    with torch.random.fork_rng([torch.cuda.current_device()] if device.startswith("cuda") else []):
        torch.manual_seed(schedule.seed)
        network = SubgraphNetwork(scales, shift, spread, measured.classes, settings, device)
        if start is not None:
            network.adopt(start)
            shift, spread = network.shift, network.spread
        taught, chosen = sums if sums is not None else (None, None)
        problem = _Problem(network, subgraphs, measured, (logs - shift) / spread, taught, settings, device)

        def score() -> float:
            return problem.score(validation) if chosen is None else problem.score_of(chosen)

        examples = training if len(training) or taught is None else np.unique(taught.owner)
        history = fit(network.learned, examples, problem.loss, score, schedule, log)
    return network, history
