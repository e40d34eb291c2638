"""Lab: LILOU fitting: what its two networks share: GAT layers over stacked graphs, and the training loop.

As in the paper: every layer is GAT, GraphSizeNorm (x / √|V|), ReLU; categories are one-hot and numbers standardised;
Adam with a one-cycle learning rate; the weights that are best on the validation side are kept. The paper leaves open
what is decided here: one head; attention includes the node itself; the cycle is PyTorch's (a rise over 30 % of the
steps, then a cosine) without its change of momentum; it ends with the steps or with the seconds, whichever comes first.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.errors import DataError
from lab.papers.graph_networks.forward import Inputs, flow_of, graph_layer
from lab.papers.graph_networks.recipes import Recipe
from lab.papers.graph_networks.tensors import DeviceGraphs, Tensor, Tensors, TorchOperations, torch
from lab.papers.lilou.features import DTYPE_CODES, OPERATOR_CODES, SIZES, NodeTable

_RISE, _FIRST, _LAST = (
    0.3,
    25.0,
    25e4,
)  # of a one-cycle rate: the share of steps that rise, and the divisors of the rate at start and end
_CODES = 2  # the first columns hold codes: operator and type
NODE_WIDTH = OPERATOR_CODES + DTYPE_CODES + len(SIZES)

Log = Callable[[str], None]
Numbers = NDArray[np.int64]
Record = dict[str, float]


@dataclass(frozen=True)
class Schedule:
    """How long and how fast to train; ``batch`` counts graphs; no step begins after ``seconds``."""

    rate: float
    batch: int
    epochs: int
    seconds: float | None = None
    seed: int = 0


@dataclass(frozen=True)
class Gat:
    """GAT layers of one width; ``direction`` is that of messages: from makers to readers (forward), or both (mutual).

    ``published`` returns the output of the last layer, normalised by the size of the graph. Otherwise nothing is
    normalised, and the outputs of the node's own layer and of all GAT layers are concatenated.
    """

    width: int
    layers: int
    direction: str
    published: bool = True

    @property
    def out_width(self) -> int:
        """The number of columns that `embed` returns."""
        return self.width if self.published else self.width * (1 + self.layers)

    def draw(self, into: int, device: str) -> Tensors:
        """Initial weights."""
        weights: Tensors = {}
        if not self.published:
            weights["own"] = torch.nn.init.xavier_uniform_(torch.empty(into, self.width)).to(device).requires_grad_()
        for number in range(self.layers):
            for end, shape in (("", (into, self.width)), (".sent", (self.width, 1)), (".heard", (self.width, 1))):
                drawn = torch.nn.init.xavier_uniform_(torch.empty(shape))
                weights[f"gat.{number}{end}.weight"] = drawn.to(device).requires_grad_()
            weights[f"gat.{number}.bias"] = torch.zeros(self.width, device=device, requires_grad=True)
            into = self.width
        return weights

    def embed(self, weights: Tensors, x: "Tensor | NodeRows", inputs: Inputs) -> Tensor:
        """One row for each node of a stack of graphs; ``inputs.whole`` has one row for each graph."""
        ops, recipe = TorchOperations(weights), Recipe(block="gat", width=self.width, heads=1)
        flow = flow_of(ops, inputs, self.direction)  # a stack without edges does not use it
        sizes = ops.count_into(inputs.graph_index, inputs.whole)
        size_norm = ops.rows(sizes.rsqrt(), inputs.graph_index) if self.published else 1.0
        outputs = [] if self.published else [torch.relu(x @ weights["own"])]
        alone = not inputs.edges.shape[1]
        for number in range(self.layers):
            name = f"gat.{number}"
            # without an edge a node hears only itself: the softmax over one score is 1, and the layer is linear
            heard = (
                x @ weights[f"{name}.weight"] + weights[f"{name}.bias"]
                if alone
                else graph_layer(ops, recipe, x, flow, name)
            )
            x = torch.relu(heard * size_norm)
            outputs.append(x)
        return x if self.published else torch.cat(outputs, 1)


@dataclass(frozen=True)
class Scale:
    """Standardisation to mean 0 and deviation 1; a constant column becomes 0."""

    mean: NDArray[np.float32]
    deviation: NDArray[np.float32]

    @classmethod
    def of(cls, values: NDArray[np.float32]) -> "Scale":
        """The scale of some rows."""
        deviation = values.std(axis=0, dtype=np.float64)
        return cls(
            values.mean(axis=0, dtype=np.float64).astype(np.float32),
            # dividing by infinity makes a constant column 0
            np.where(deviation > 1e-6, deviation, np.inf).astype(np.float32),
        )

    def scaled(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Rows in this scale."""
        return np.asarray((values - self.mean) / self.deviation, np.float32)


class LoneNodes(DeviceGraphs):
    """Graphs of one node each, without edges: the number of a graph is that of its node."""

    def pick(self, numbers: Numbers, embedding: Tensor | None = None) -> Inputs:
        """Graphs by number, stacked."""
        chosen = torch.from_numpy(numbers).to(self.nodes.device)
        index = torch.arange(len(numbers), device=self.nodes.device)
        nodes, whole = (rows.index_select(0, chosen) for rows in (self.nodes, self.whole))
        return Inputs(nodes, self.edges, index, whole, embedding)


def place(
    nodes: NodeTable, scale: Scale, edges: NDArray[np.int64], counts: tuple[Numbers, Numbers],
    whole: NDArray[np.float32], device: str,
) -> DeviceGraphs:  # fmt: skip
    """Graphs on a device; ``counts`` are the nodes and edges of each, ``whole`` has one row for each graph."""
    codes = np.stack([nodes.operators, nodes.dtypes], axis=1).astype(np.float32)
    rows = np.concatenate([codes, scale.scaled(nodes.sizes)], axis=1)
    kind = LoneNodes if (counts[0] == 1).all() and not edges.size else DeviceGraphs
    return kind(
        torch.from_numpy(rows).to(device), torch.from_numpy(edges).to(device), torch.from_numpy(whole).to(device),
        None, counts[0].astype(np.int64), counts[1].astype(np.int64),
    )  # fmt: skip


@dataclass(frozen=True)
class NodeRows:
    """Rows of nodes: operator and type, meant one-hot, then numbers; a product with a matrix looks up what they select.

    A one-hot row times a matrix is one of its rows: most of the first product is spared.
    """

    operators: Tensor
    dtypes: Tensor
    numbers: Tensor

    @property
    def dtype(self) -> Any:
        """The precision of the numbers."""
        return self.numbers.dtype

    def __matmul__(self, weight: Tensor) -> Tensor:
        chosen = weight.index_select(0, self.operators) + weight.index_select(0, self.dtypes + OPERATOR_CODES)
        return chosen + self.numbers @ weight[OPERATOR_CODES + DTYPE_CODES :]


def node_rows(inputs: Inputs, whole: Tensor) -> NodeRows:
    """One row for each node: operator and type one-hot, sizes, and the columns of its whole graph."""
    operators, dtypes = inputs.nodes[:, :_CODES].long().unbind(1)
    numbers = torch.cat([inputs.nodes[:, _CODES:], whole.index_select(0, inputs.graph_index)], 1)
    return NodeRows(operators, dtypes, numbers)


def one_cycle(rate: float, done: float) -> float:
    """The rate when a share of the steps is done (L. Smith, 2017; as PyTorch has it).

    >>> one_cycle(1.0, 0.0), one_cycle(1.0, 0.3), one_cycle(1.0, 1.0)
    (0.04, 1.0, 4e-06)
    """
    first, last = rate / _FIRST, rate / _LAST
    if done < _RISE:
        return first + (rate - first) * (1 - math.cos(math.pi * done / _RISE)) / 2
    return last + (rate - last) * (1 + math.cos(math.pi * min((done - _RISE) / (1 - _RISE), 1.0))) / 2


def fit(
    learned: Sequence[Tensor], training: Numbers, loss_of: Callable[[Numbers], Any], score: Callable[[], float],
    schedule: Schedule, log: Log = lambda _: None,
) -> list[Record]:  # fmt: skip
    """Fit tensors in place to the examples ``training``, and leave them as they were when ``score`` was highest.

    The clock starts here. If the time is over before an epoch is complete, the score of the steps so far counts.
    """
    begin, history, best = time.monotonic(), list[Record](), [tensor.detach().clone() for tensor in learned]
    optimizer = torch.optim.Adam(list(learned), lr=schedule.rate)
    random = np.random.default_rng(schedule.seed)
    steps = schedule.epochs * math.ceil(len(training) / schedule.batch)
    step = 0
    for epoch in range(schedule.epochs):
        total, order = 0.0, random.permutation(training)
        for start in range(0, len(order), schedule.batch):
            time_used = _time_used(begin, schedule)
            if time_used >= 1.0:
                break
            for group in optimizer.param_groups:
                group["lr"] = one_cycle(schedule.rate, max(step / steps, time_used))
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(order[start : start + schedule.batch])
            loss.backward()
            optimizer.step()
            total, step = total + loss.detach(), step + 1
        with torch.no_grad():
            validation_score = score()
        record = {"epoch": epoch, "loss": float(total), "score": validation_score, "seconds": time.monotonic() - begin}
        if math.isfinite(record["loss"]) and validation_score > max(
            (past["score"] for past in history), default=-math.inf
        ):
            best = [tensor.detach().clone() for tensor in learned]
        history.append(record)
        log(f"epoch {epoch + 1} of {schedule.epochs}: {validation_score:.4f} after {record['seconds']:.0f} s")
        if _time_used(begin, schedule) >= 1.0:
            break
    if not any(math.isfinite(past["loss"]) for past in history):
        raise DataError(f"None of {len(history)} epochs gave a finite loss: fit with a rate below {schedule.rate:g}.")
    with torch.no_grad():
        for tensor, value in zip(learned, best, strict=True):
            tensor.copy_(value)
    return history


def _time_used(begin: float, schedule: Schedule) -> float:
    """The share of the allowed seconds that has passed."""
    return 0.0 if schedule.seconds is None else (time.monotonic() - begin) / max(schedule.seconds, 1e-9)
