"""Lab: TraPPM's pre-training: a graph autoencoder learns from unlabelled graphs which nodes are connected.

Kipf and Welling: Variational graph auto-encoders, 2016 (the plain one). The decoder is Â = σ(z zᵀ). The loss is −log Â
on edges and −log(1 − Â) on as many pairs of the same graph that are not edges.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.errors import InputError
from lab.papers.graph_networks.arrays import SCHEMA, GraphArrays
from lab.papers.graph_networks.forward import ENCODER, Inputs, encode, scale
from lab.papers.graph_networks.loop import Loop, Progress, Record, best_record
from lab.papers.graph_networks.recipes import NODE_WIDTHS, Recipe
from lab.papers.graph_networks.scales import node_scales
from lab.papers.graph_networks.steps import FixedBatches, FixedSteps
from lab.papers.graph_networks.tensors import (
    DeviceGraphs,
    Tensor,
    Tensors,
    TorchOperations,
    functional,
    to_arrays,
    to_tensors,
    torch,
)
from lab.papers.graph_networks.training import BATCH_NORM_MOMENTUM, Encoder
from lab.papers.graph_networks.weights import initial_encoder

Loss = Callable[[TorchOperations, Recipe, Inputs], Tensor]
_DECODER = f"{ENCODER}.decoder"
_HIDDEN = 0.3  # of the nodes
_LAST_RELU = (True, False)  # as published, and without: only then can Â be below 0.5


def pretrain(
    graphs: Sequence[GraphArrays],
    validation: Sequence[GraphArrays],
    recipe: Recipe,
    seed: int = 0,
    progress: Progress = lambda _epoch, _record: None,
    device: str = "cpu",
    *,
    checkpoint: Path | None = None,
    seconds: float | None = None,
) -> Encoder:
    """The better of two encoders, with and without a ReLU at its end, by the loss on the validation graphs.

    With no epochs the weights stay random, and only the statistics of batch norms are computed. The two encoders share
    the ``seconds``; each has at least one epoch.
    """
    if not graphs or not validation:
        raise InputError(f"Got {len(graphs)} training and {len(validation)} validation graphs; give some of each.")
    if not recipe.encoder_epochs:
        return random_encoder(graphs, recipe, seed, device)
    sides = [DeviceGraphs.place(side, recipe, device) for side in (graphs, validation)]
    scales = node_scales(f"{ENCODER}.nodes", graphs, recipe)
    encoders, share_s = [], seconds / len(_LAST_RELU) if seconds is not None else None
    for last_relu in _LAST_RELU:
        own = replace(recipe, last_relu=last_relu)
        file = checkpoint.with_name(f"{checkpoint.name}-{'relu' if last_relu else 'linear'}") if checkpoint else None
        encoders.append(train_encoder(sides[0], sides[1], own, seed, scales, progress, device, file, share_s))
    return min(encoders, key=lambda encoder: encoder.loss)


def train_encoder(
    graphs: DeviceGraphs,
    validation: DeviceGraphs,
    recipe: Recipe,
    seed: int,
    scales: dict[str, NDArray[np.float32]],
    progress: Progress,
    device: str,
    checkpoint: Path | None,
    seconds: float | None,
    save_every_s: float = 0.0,
    *,
    masked: bool = False,
    narrow: bool | None = None,
    captured: bool = False,
    start: Encoder | None = None,
) -> Encoder:
    """One encoder; its epoch is chosen by the loss on the validation graphs.

    A ``masked`` one does not learn edges: it fills in the features of hidden nodes. With ``captured``, steps have fixed
    shapes, and a GPU replays them. From a ``start`` it goes on for all the recipe's epochs; only the moments of Adam
    begin again.
    """
    weights = initial_encoder(recipe, seed) | scales if start is None else dict(start.weights)
    if masked:
        weights |= first_decoder(recipe, seed)
    loss: Loss = masked_loss if masked else edge_loss
    tensors = to_tensors(weights, device)
    kind = "|masked" if masked else ""
    digest = hashlib.sha256(f"{SCHEMA}|{recipe.to_json()}|{seed}|{graphs.node_counts.tolist()}{kind}".encode())
    digest.update(b"".join(value.tobytes() for value in (scales if start is None else start.weights).values()))
    earlier = start.history if start is not None else ()
    drawing = seed + len(earlier)  # other batches than those that it has seen
    settings = replace(recipe, schedule="constant", weight_decay=0.0, patience=recipe.encoder_epochs)
    identity = digest.hexdigest()[:16]
    loop = Loop(settings, recipe.encoder_epochs, recipe.encoder_rate, drawing, device, identity, seconds, save_every_s)
    trainer = _Trainer(tensors, recipe, graphs, drawing, loss, narrow, captured)
    best, history = loop.run(
        tensors,
        trainer.epoch,
        lambda: {"score": _loss(tensors, recipe, validation, seed, loss)},
        progress,
        checkpoint,
    )
    kept = {name: value for name, value in to_arrays(best).items() if not name.startswith(_DECODER)}
    return Encoder(kept, recipe.last_relu, best_record(history)["score"], (*earlier, *history))


def random_encoder(graphs: Sequence[GraphArrays], recipe: Recipe, seed: int, device: str) -> Encoder:
    """Random weights with the statistics of batch norms over all graphs: what a frozen encoder has without learning."""
    tensors = to_tensors(initial_encoder(recipe, seed) | node_scales(f"{ENCODER}.nodes", graphs, recipe), device)
    placed = DeviceGraphs.place(graphs, recipe, device)
    order = np.random.default_rng(seed).permutation(len(placed)).astype(np.int64)
    batches = np.array_split(order, math.ceil(len(order) / recipe.batch))
    with torch.no_grad():
        for number, batch in enumerate(batches):  # this momentum makes the statistics the mean over all batches
            encode(TorchOperations(tensors, momentum=1 / (number + 1)), recipe, placed.pick(batch))
    return Encoder(to_arrays(tensors), recipe.last_relu)


class _Trainer:
    """Epochs over graphs without labels, by captured steps or by plain ones."""

    def __init__(
        self, tensors: Tensors, recipe: Recipe, graphs: DeviceGraphs, seed: int, kind: Loss, narrow: bool | None,
        captured: bool,
    ) -> None:  # fmt: skip
        narrow = graphs.nodes.is_cuda if narrow is None else narrow
        self._ops = TorchOperations(tensors, dropping=True, momentum=BATCH_NORM_MOMENTUM, narrow_nodes=narrow)
        self._recipe, self._graphs, self._seed, self._kind, self._captured = recipe, graphs, seed, kind, captured
        self._steps: FixedSteps | None = None

    def epoch(self, epoch: int, optimizer: Any) -> Record:
        """One epoch in an order of its own; the mean loss of a batch."""
        graphs, each = self._graphs, self._recipe.batch
        order = np.random.default_rng((self._seed, epoch)).permutation(len(graphs)).astype(np.int64)
        if self._captured:
            if self._steps is None:
                batches = FixedBatches(graphs, None, graphs.nodes.new_zeros(len(graphs), 1))
                on_gpu = graphs.nodes.is_cuda
                self._steps = FixedSteps(batches, self._loss, optimizer, self._recipe, captured=on_gpu)
            return {"loss": self._steps.epoch(order) / max(-(-len(order) // each), 1)}
        total, batches_done = graphs.nodes.new_zeros(()), 0
        for begin in range(0, len(order), each):
            for part in graphs.parts(order[begin : begin + each]):
                optimizer.zero_grad(set_to_none=True)
                loss = self._kind(self._ops, self._recipe, graphs.pick(part))
                loss.backward()
                optimizer.step()
                total, batches_done = total + loss.detach(), batches_done + 1
        return {"loss": float(total) / max(batches_done, 1)}

    def _loss(self, inputs: Inputs, labels: Tensor) -> tuple[Tensor, Tensor]:
        return self._kind(self._ops, self._recipe, inputs), labels.new_ones(())


def _loss(tensors: Tensors, recipe: Recipe, graphs: DeviceGraphs, seed: int, kind: Loss) -> float:
    torch.manual_seed(seed)  # the same pairs or hidden nodes in every epoch
    ops, parts = TorchOperations(tensors), list(graphs.parts(np.arange(len(graphs))))
    return float(sum(kind(ops, recipe, graphs.pick(part)) for part in parts)) / len(parts)


def edge_loss(ops: TorchOperations, recipe: Recipe, inputs: Inputs) -> Tensor:
    """The cross-entropy of edges against pairs that are not edges."""
    z = encode(replace(ops, real=_real_nodes(inputs)), recipe, inputs)
    source, target, is_edge = _ends(inputs)
    if not len(source):
        return z.sum() * 0
    other, is_pair = sample_others(inputs)
    edge_scores, pair_scores = (
        (z.index_select(0, source) * z.index_select(0, end)).sum(dim=1, dtype=torch.float32) for end in (target, other)
    )
    # from the logits: log(1 − σ + 1e-15), as published, has no gradient where σ rounds to 1
    return _mean(functional.softplus(-edge_scores), is_edge) + _mean(functional.softplus(pair_scores), is_pair)


def sample_others(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """For the maker of each edge a node of its graph by chance, and whether no edge connects the two in any direction.

    Shapes do not depend on chance, so that a GPU can capture it.
    """
    source, target, is_edge = _ends(inputs)
    count, index = len(inputs.graph_index), inputs.graph_index
    sizes = torch.zeros(len(inputs.whole), dtype=index.dtype, device=index.device)
    sizes = sizes.index_add_(0, index, torch.ones_like(index))
    starts = torch.cumsum(sizes, 0) - sizes
    graph = index[source]
    other = starts[graph] + (torch.rand(len(graph), device=graph.device) * sizes[graph]).long()
    # rand · size can round up to size
    other = torch.minimum(other, starts[graph] + sizes[graph] - 1)
    connected, asked = torch.cat([source * count + target, target * count + source]), source * count + other
    ordered = torch.sort(connected).values
    place = torch.searchsorted(ordered, asked).clamp(max=len(ordered) - 1)
    return other, is_edge & (source != other) & (ordered[place] != asked)


def _ends(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """Makers and readers of all edges, and which edges are no padding."""
    if inputs.edges is not None:
        source, target = inputs.edges[0], inputs.edges[1]
        return source, target, torch.ones_like(source, dtype=torch.bool)
    assert inputs.flow is not None
    source, target = inputs.flow.source, inputs.flow.target
    return source, target, inputs.graph_index[target] < len(inputs.whole) - 1


def _real_nodes(inputs: Inputs) -> Tensor | None:
    """Which nodes are no padding, in batches of fixed shape: those are all of the last graph; otherwise None."""
    return None if inputs.edges is not None else inputs.graph_index < len(inputs.whole) - 1


def _mean(values: Tensor, counted: Tensor) -> Tensor:
    """The mean of some values; 0 where there are none."""
    return torch.where(counted, values, 0.0).sum() / counted.sum().clamp(min=1)


def first_decoder(recipe: Recipe, seed: int) -> dict[str, NDArray[np.float32]]:
    """A linear layer from the last width of the encoder to the features of a node."""
    width, features = recipe.encoder_widths[-1], NODE_WIDTHS[recipe.nodes]
    reach = 1 / math.sqrt(width)
    drawn = np.random.default_rng((seed, 3)).uniform(-reach, reach, (width, features)).astype(np.float32)
    return {f"{_DECODER}.weight": drawn, f"{_DECODER}.bias": np.zeros(features, np.float32)}


def masked_loss(ops: TorchOperations, recipe: Recipe, inputs: Inputs) -> Tensor:
    """The squared error of the features of hidden nodes, over that of guessing their mean: 1 is chance.

    As GraphMAE (Hou et al., 2022), with a plain square. Hidden nodes have zeros in the place of raw features.
    """
    truth = scale(ops, inputs.nodes, f"{ENCODER}.nodes").float()
    real = _real_nodes(inputs)
    hidden = torch.rand(len(inputs.nodes), device=inputs.nodes.device) < _HIDDEN
    seen = torch.where(hidden[:, None], torch.zeros_like(inputs.nodes), inputs.nodes)
    z = encode(replace(ops, real=real), recipe, replace(inputs, nodes=seen))
    guess = ops.affine(z.float(), ops.weight(f"{_DECODER}.weight"), ops.weight(f"{_DECODER}.bias"))
    asked = (hidden if real is None else hidden & real)[:, None].expand_as(truth)
    means = torch.where(asked, truth, 0.0).sum(dim=0) / asked.sum(dim=0).clamp(min=1)
    return _mean((guess - truth) ** 2, asked) / _mean((truth - means) ** 2, asked).clamp(min=1e-6)
