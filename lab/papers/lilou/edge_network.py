"""predictors: LILOU's graph partitioner: a GAT and an LSTM that tell of an edge whether a runtime fuses its two ends.

Q. Liang, H. Wang, P. Shenoy: one GAT layer of 128 channels over the directed graph, the embeddings of an edge's two
ends in their order through an LSTM of 128 channels, a linear layer; cross-entropy, rate 1e-2, 32 graphs a batch, 20
epochs. Left open there and decided here: the target is one-hot at every node, so that one network serves three
runtimes; an edge is fused from 0.5 on; the rest is in `lilou_fitting`. `DEEPER` is ours: one layer sees only who makes
what a node reads, but what fuses also hangs on who reads it, and farther on. Its three layers send both ways, and the
LSTM reads the node itself and all three; GraphSizeNorm, three times over, would leave 1/|V|^1.5 of what a node says.
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

_LIKELY = 0.0  # a logit: one half

Say = Callable[[str], None]
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

    ``edges`` has makers and readers, numbered within each graph; ``fused`` the labels of all examples, one after the
    other.
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
        """How many edges each example has."""
        return np.asarray(self.edge_counts[self.graph])


class EdgeNetwork:
    """A network on a device, and the examples that lie there with it."""

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
        """All that is fitted."""
        return [*self._gat.values(), *self._lstm.parameters(), *self._out.parameters()]

    def _logits(self, numbers: Numbers) -> Tensor:
        inputs: Inputs = self._graphs.pick(self._examples.graph[numbers])
        x = node_rows(inputs, self._runtimes[torch.from_numpy(numbers).to(self._runtimes.device)])
        x = self._settings.gat.embed(self._gat, x, inputs)
        ends = torch.stack([x.index_select(0, end) for end in inputs.edges], 1)
        _, (last, _) = self._lstm(ends)
        return self._out(last[0])[:, 0]

    def loss(self, numbers: Numbers) -> Tensor:
        """The cross-entropy of some examples, every edge alike."""
        labels = torch.cat([self._fused[number] for number in numbers.tolist()])
        return functional.binary_cross_entropy_with_logits(self._logits(numbers), labels)

    def tell(self, numbers: Numbers) -> Flags:
        """Which edges of some examples are fused."""
        said, start = list[Flags](), 0
        with torch.no_grad():
            for part in self._graphs.parts(self._examples.graph[numbers]):
                own = numbers[start : start + len(part)]
                start += len(part)
                said.append((self._logits(own) > _LIKELY).cpu().numpy())
        return np.concatenate(said) if said else np.zeros(0, bool)

    def accuracy(self, numbers: Numbers) -> float:
        """The share of edges that are told rightly."""
        labels = torch.cat([self._fused[number] for number in numbers.tolist()]).cpu().numpy() > 0
        return float((self.tell(numbers) == labels).mean())


def fit_edge_network(
    examples: EdgeExamples, taught: Numbers, checked: Numbers, settings: EdgeFit, device: str,
    seconds: float | None = None, say: Say = lambda _: None,
) -> tuple[EdgeNetwork, list[Record]]:  # fmt: skip
    """A network fitted to the examples ``taught``, at its best on ``checked``; examples without edges are no help."""
    taught, checked = (numbers[examples.sizes[numbers] > 0] for numbers in (taught, checked))
    known = np.unique(examples.graph[taught])
    of_graph = np.repeat(np.arange(len(examples.node_counts)), examples.node_counts)
    scale = Scale.of(examples.nodes.sizes[np.isin(of_graph, known)])
    schedule = replace(settings.schedule, seconds=seconds)
    with torch.random.fork_rng([torch.cuda.current_device()] if device.startswith("cuda") else []):
        torch.manual_seed(schedule.seed)
        network = EdgeNetwork(examples, scale, settings, device)
        history = fit(network.learned, taught, network.loss, lambda: network.accuracy(checked), schedule, say)
    return network, history
