"""Lab: LILOU's sub-graph runtime analyser: a GAT that predicts the latency and the kernel of nodes that run as one.

Q. Liang, H. Wang, P. Shenoy: three GAT layers of 256 channels over the undirected sub-graph, with the features of the
device beside those of every node; the mean over nodes; one linear layer for both tasks; the root of the mean squared
error of the latency plus the cross-entropy of the kernel; learning rate 5e-4, 512 sub-graphs a batch, 100 epochs. The
paper leaves open what is decided here: the latency is a standardised logarithm; a sub-graph that stands for several
equal ones has the square root of their number as its weight; the best epoch has the highest share of correctly
predicted kernels less the error of the latency. The rest is in `lab.papers.lilou.fitting`. For a sub-graph of one node,
a GAT layer is a linear layer.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.papers.graph_networks.forward import Inputs
from lab.papers.graph_networks.tensors import DeviceGraphs, Tensor, Tensors, functional, torch
from lab.papers.lilou.features import DEVICE_COLUMNS, NodeTable
from lab.papers.lilou.fitting import NODE_WIDTH, Gat, Numbers, Record, Scale, Schedule, fit, node_rows, place

MOST = 5  # number of likeliest kernels
_PREDICTED_AT_ONCE = 65_536

Log = Callable[[str], None]
Values = NDArray[np.float64]


@dataclass(frozen=True)
class SubgraphFit:
    """A network and how it is fitted."""

    gat: Gat
    schedule: Schedule


PUBLISHED = SubgraphFit(Gat(width=256, layers=3, direction="mutual"), Schedule(rate=5e-4, batch=512, epochs=100))


@dataclass(frozen=True)
class Subgraphs:
    """Sub-graphs: their nodes, the edges between them (numbered within each), and the device of each."""

    nodes: NodeTable
    edges: NDArray[np.int64]
    node_counts: Numbers
    edge_counts: Numbers
    device: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.node_counts)

    @classmethod
    def of_nodes(cls, nodes: NodeTable, device: NDArray[np.float32]) -> "Subgraphs":
        """Sub-graphs of one node each, all on one device."""
        count = len(nodes)
        ones, none = np.ones(count, np.int64), np.zeros(count, np.int64)
        return cls(nodes, np.zeros((2, 0), np.int64), ones, none, np.broadcast_to(device, (count, len(device))))

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


class SubgraphNetwork:
    """The network, on a device."""

    def __init__(
        self, scales: tuple[Scale, Scale], shift: float, spread: float, classes: int, settings: SubgraphFit, device: str
    ) -> None:
        self.scales = scales
        self._shift, self._spread = shift, spread
        self._settings, self._device = settings, device
        self._gat: Tensors = settings.gat.draw(NODE_WIDTH + len(DEVICE_COLUMNS), device)
        self._out: Any = torch.nn.Linear(settings.gat.out_width, 1 + classes).to(device)

    @property
    def learned(self) -> list[Tensor]:
        """All parameters."""
        return [*self._gat.values(), *self._out.parameters()]

    def forward(self, graphs: DeviceGraphs, numbers: Numbers) -> Tensor:
        """For each sub-graph its standardised log latency, and a logit for each kernel."""
        inputs: Inputs = graphs.pick(numbers)
        x = self._settings.gat.embed(self._gat, node_rows(inputs, inputs.whole), inputs)
        sums = x.new_zeros(len(numbers), x.shape[1]).index_add_(0, inputs.graph_index, x)
        nodes = torch.from_numpy(graphs.node_counts[numbers]).to(x.device).unsqueeze(1)
        return self._out(sums / nodes)

    def predict(self, subgraphs: Subgraphs) -> tuple[Values, NDArray[np.int16]]:
        """Microseconds, and the codes of the likeliest kernels, best first."""
        return self.predict_placed(subgraphs.on(self.scales, self._device), np.arange(len(subgraphs)))

    def predict_placed(self, graphs: DeviceGraphs, numbers: Numbers) -> tuple[Values, NDArray[np.int16]]:
        """The same for sub-graphs that are on the device already."""
        times, likeliest = [], []
        with torch.no_grad():
            for start in range(0, len(numbers), _PREDICTED_AT_ONCE):
                out = self.forward(graphs, numbers[start : start + _PREDICTED_AT_ONCE])
                most = min(MOST, out.shape[1] - 1)
                times.append(np.exp(out[:, 0].double().cpu().numpy() * self._spread + self._shift))
                likeliest.append(out[:, 1:].topk(most, dim=1).indices.cpu().numpy().astype(np.int16))
        return np.concatenate(times), np.concatenate(likeliest)


def fit_subgraph_network(
    subgraphs: Subgraphs, measured: Measured, training: Numbers, validation: Numbers, settings: SubgraphFit,
    device: str, seconds: float | None = None, log: Log = lambda _: None,
) -> tuple[SubgraphNetwork, list[Record]]:  # fmt: skip
    """Fit a network to the sub-graphs ``training``; ``validation`` chooses the best epoch."""
    logs, weights = np.log(measured.time_us), np.sqrt(measured.counts)
    owner = np.repeat(np.arange(len(subgraphs)), subgraphs.node_counts)
    sizes = subgraphs.nodes.sizes[np.isin(owner, training)]
    scales = Scale.of(sizes), Scale.of(subgraphs.device[training])
    shift, spread = float(logs[training].mean()), float(max(logs[training].std(), 1e-6))
    schedule = replace(settings.schedule, seconds=seconds)
    with torch.random.fork_rng([torch.cuda.current_device()] if device.startswith("cuda") else []):
        torch.manual_seed(schedule.seed)
        network = SubgraphNetwork(scales, shift, spread, measured.classes, settings, device)
        graphs = subgraphs.on(scales, device)
        truth = torch.from_numpy(((logs - shift) / spread).astype(np.float32)).to(device)
        label = torch.from_numpy(measured.label).to(device)
        weight = torch.from_numpy(weights.astype(np.float32)).to(device)

        def loss(numbers: Numbers) -> Tensor:
            rows = torch.from_numpy(numbers).to(device)
            out, share = network.forward(graphs, numbers), weight[rows] / weight[rows].sum()
            squares = (out[:, 0] - truth[rows]) ** 2
            entropy = functional.cross_entropy(out[:, 1:], label[rows], reduction="none")
            # the root has no gradient at 0
            return ((squares * share).sum() + 1e-12).sqrt() + (entropy * share).sum()

        def score() -> float:
            time_us, likeliest = network.predict_placed(graphs, validation)
            counts = measured.counts[validation]
            error = np.abs(time_us / measured.time_us[validation] - 1.0).clip(max=1.0)
            return float(((likeliest[:, 0] == measured.label[validation]) - error) @ counts / counts.sum())

        history = fit(network.learned, training, loss, score, schedule, log)
    return network, history
