"""Lab: LILOU's graph partitioner: a GAT and an LSTM that predict whether a runtime fuses the two ends of an edge.

Q. Liang, H. Wang, P. Shenoy: one GAT layer of 128 channels over the directed graph; the embeddings of an edge's two
ends, in order, through an LSTM of 128 channels; a linear layer; cross-entropy, learning rate 1e-2, 32 graphs a batch,
20 epochs. The paper leaves open what is decided here: the runtime is one-hot at every node, so that one network serves
three runtimes; an edge is fused from a probability of 0.5. The rest is in `lab.papers.lilou.fitting`.

`DEEPER` is ours. One layer sees only the makers of a node's inputs, but fusion also depends on the readers of its
output, and on nodes farther away. The three layers of `DEEPER` send messages both ways, and the LSTM reads the node
itself and all three layers. It has no GraphSizeNorm, which over three layers would leave 1/|V|^1.5 of a node's own
signal.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.predictors.fusion.edges import RUNTIMES
from lab.papers.graph_networks.forward import Inputs
from lab.papers.graph_networks.tensors import DeviceGraphs, Tensor, Tensors, functional, torch
from lab.papers.lilou.features import NodeTable
from lab.papers.lilou.fitting import NODE_WIDTH, Gat, Numbers, Record, Scale, Schedule, fit, node_rows, place

_THRESHOLD = 0.0  # as a logit: a probability of one half

Log = Callable[[str], None]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class EdgeFit:
    """A network and how it is fitted."""

    gat: Gat
    schedule: Schedule
    lstm: int = 128


PUBLISHED = EdgeFit(Gat(width=128, layers=1, direction="forward"), Schedule(rate=1e-2, batch=32, epochs=20))
DEEPER = EdgeFit(
    Gat(width=128, layers=3, direction="mutual", published=False), Schedule(rate=2e-3, batch=16, epochs=80)
)
FITS = {"lilou": PUBLISHED, "lilou, three layers both ways": DEEPER}


@dataclass(frozen=True)
class EdgeExamples:
    """Graphs, and examples: a graph under a runtime, with a label for each of its edges.

    ``edges`` are pairs of maker and reader, numbered within each graph; ``fused`` has the labels of all examples in
    order.
    """

    nodes: NodeTable
    edges: NDArray[np.int64]
    node_counts: Numbers
    edge_counts: Numbers
    graph: Numbers
    runtime: Numbers
    fused: Flags

    def __len__(self) -> int:
        return len(self.graph)

    @property
    def sizes(self) -> Numbers:
        """The number of edges of each example."""
        return np.asarray(self.edge_counts[self.graph])


class EdgeNetwork:
    """The network, on a device, with the examples there."""

    def __init__(self, examples: EdgeExamples, scale: Scale, settings: EdgeFit, device: str) -> None:
        self._examples = examples
        self._settings = settings
        counts = (examples.node_counts, examples.edge_counts)
        self._graphs: DeviceGraphs = place(
            examples.nodes, scale, examples.edges, counts, np.zeros((len(counts[0]), 1), np.float32), device
        )
        self._runtimes = functional.one_hot(torch.from_numpy(examples.runtime), len(RUNTIMES)).float().to(device)
        labels = torch.from_numpy(examples.fused.astype(np.float32)).to(device)
        self._fused: list[Tensor] = list(labels.split(examples.sizes.tolist()))
        self._gat: Tensors = settings.gat.draw(NODE_WIDTH + len(RUNTIMES), device)
        self._lstm: Any = torch.nn.LSTM(settings.gat.out_width, settings.lstm, batch_first=True).to(device)
        self._out: Any = torch.nn.Linear(settings.lstm, 1).to(device)

    @property
    def learned(self) -> list[Tensor]:
        """All parameters."""
        return [*self._gat.values(), *self._lstm.parameters(), *self._out.parameters()]

    def _logits(self, numbers: Numbers) -> Tensor:
        inputs: Inputs = self._graphs.pick(self._examples.graph[numbers])
        x = node_rows(inputs, self._runtimes[torch.from_numpy(numbers).to(self._runtimes.device)])
        x = self._settings.gat.embed(self._gat, x, inputs)
        ends = torch.stack([x.index_select(0, end) for end in inputs.edges], 1)
        # the last hidden state, after both ends in order
        _, (last, _) = self._lstm(ends)
        return self._out(last[0])[:, 0]

    def loss(self, numbers: Numbers) -> Tensor:
        """The cross-entropy of some examples; every edge has the same weight."""
        labels = torch.cat([self._fused[number] for number in numbers.tolist()])
        return functional.binary_cross_entropy_with_logits(self._logits(numbers), labels)

    def predict(self, numbers: Numbers) -> Flags:
        """Which edges of some examples are fused."""
        predicted, start = list[Flags](), 0
        with torch.no_grad():
            for part in self._graphs.parts(self._examples.graph[numbers]):
                own = numbers[start : start + len(part)]
                start += len(part)
                predicted.append((self._logits(own) > _THRESHOLD).cpu().numpy())
        return np.concatenate(predicted) if predicted else np.zeros(0, bool)

    def accuracy(self, numbers: Numbers) -> float:
        """The share of edges that are predicted correctly."""
        labels = torch.cat([self._fused[number] for number in numbers.tolist()]).cpu().numpy() > 0
        return float((self.predict(numbers) == labels).mean())


def fit_edge_network(
    examples: EdgeExamples, training: Numbers, validation: Numbers, settings: EdgeFit, device: str,
    seconds: float | None = None, log: Log = lambda _: None,
) -> tuple[EdgeNetwork, list[Record]]:  # fmt: skip
    """Fit a network to the examples ``training``; ``validation`` chooses the best epoch."""
    # an example without edges has no loss
    training, validation = (numbers[examples.sizes[numbers] > 0] for numbers in (training, validation))
    training_graphs = np.unique(examples.graph[training])
    of_graph = np.repeat(np.arange(len(examples.node_counts)), examples.node_counts)
    scale = Scale.of(examples.nodes.sizes[np.isin(of_graph, training_graphs)])
    schedule = replace(settings.schedule, seconds=seconds)
    with torch.random.fork_rng([torch.cuda.current_device()] if device.startswith("cuda") else []):
        torch.manual_seed(schedule.seed)
        network = EdgeNetwork(examples, scale, settings, device)
        history = fit(network.learned, training, network.loss, lambda: network.accuracy(validation), schedule, log)
    return network, history
