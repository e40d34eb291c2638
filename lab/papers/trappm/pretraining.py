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
) -> Encoder:
    """One encoder; its epoch is chosen by the loss on the validation graphs.

    A ``masked`` one does not learn edges: it fills in the features of hidden nodes.
    """
    weights = initial_encoder(recipe, seed) | scales
    if masked:
        weights |= first_decoder(recipe, seed)
    loss: Loss = masked_loss if masked else edge_loss
    tensors = to_tensors(weights, device)
    kind = "|masked" if masked else ""
    digest = hashlib.sha256(f"{SCHEMA}|{recipe.to_json()}|{seed}|{graphs.node_counts.tolist()}{kind}".encode())
    digest.update(b"".join(value.tobytes() for value in scales.values()))
    settings = replace(recipe, schedule="constant", weight_decay=0.0, patience=recipe.encoder_epochs)
    identity = digest.hexdigest()[:16]
    loop = Loop(settings, recipe.encoder_epochs, recipe.encoder_rate, seed, device, identity, seconds, save_every_s)
    best, history = loop.run(
        tensors,
        lambda epoch, optimizer: _train_epoch(
            tensors, recipe, graphs, optimizer, np.random.default_rng((seed, epoch)), loss, narrow
        ),
        lambda: {"score": _loss(tensors, recipe, validation, seed, loss)},
        progress,
        checkpoint,
    )
    kept = {name: value for name, value in to_arrays(best).items() if not name.startswith(_DECODER)}
    return Encoder(kept, recipe.last_relu, best_record(history)["score"], history)


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


def _train_epoch(
    tensors: Tensors, recipe: Recipe, graphs: DeviceGraphs, optimizer: Any, random: np.random.Generator, kind: "Loss",
    narrow: bool | None = None,
) -> Record:  # fmt: skip
    narrow = graphs.nodes.is_cuda if narrow is None else narrow
    ops = TorchOperations(tensors, dropping=True, momentum=BATCH_NORM_MOMENTUM, narrow_nodes=narrow)
    order = random.permutation(len(graphs)).astype(np.int64)
    total, batches = graphs.nodes.new_zeros(()), 0
    for begin in range(0, len(order), recipe.batch):
        for part in graphs.parts(order[begin : begin + recipe.batch]):
            optimizer.zero_grad(set_to_none=True)
            loss = kind(ops, recipe, graphs.pick(part))
            loss.backward()
            optimizer.step()
            total, batches = total + loss.detach(), batches + 1
    return {"loss": float(total) / max(batches, 1)}


def _loss(tensors: Tensors, recipe: Recipe, graphs: DeviceGraphs, seed: int, kind: "Loss") -> float:
    torch.manual_seed(seed)  # the same pairs or hidden nodes in every epoch
    ops, parts = TorchOperations(tensors), list(graphs.parts(np.arange(len(graphs))))
    return float(sum(kind(ops, recipe, graphs.pick(part)) for part in parts)) / len(parts)


def edge_loss(ops: TorchOperations, recipe: Recipe, inputs: Inputs) -> Tensor:
    """The cross-entropy of edges against pairs that are not edges."""
    z = encode(ops, recipe, inputs)
    first, second = sample_pairs(inputs)
    edge_scores, pair_scores = (
        (z[one] * z[other]).sum(dim=1, dtype=torch.float32) for one, other in (inputs.edges, (first, second))
    )
    # from the logits: log(1 − σ + 1e-15), as published, has no gradient where σ rounds to 1
    parts = [functional.softplus(-edge_scores), functional.softplus(pair_scores)]
    return sum((part.mean() for part in parts if len(part)), z.sum() * 0)


def sample_pairs(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """About as many pairs as edges; both nodes are of one graph, and no edge connects them in either direction."""
    source, target = inputs.edges[0], inputs.edges[1]
    count, index = len(inputs.graph_index), inputs.graph_index
    sizes = torch.bincount(index, minlength=len(inputs.whole))
    starts = torch.cumsum(sizes, 0) - sizes
    graph = index[source]
    other = starts[graph] + (torch.rand(len(graph), device=graph.device) * sizes[graph]).long()
    # rand · size can round up to size
    other = torch.minimum(other, starts[graph] + sizes[graph] - 1)
    connected = torch.cat([source * count + target, target * count + source])
    is_free = (source != other) & ~torch.isin(source * count + other, connected)
    return source[is_free], other[is_free]


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
    truth = scale(ops, inputs.nodes, f"{ENCODER}.nodes")
    hidden = torch.rand(len(inputs.nodes), device=inputs.nodes.device) < _HIDDEN
    seen = torch.where(hidden[:, None], torch.zeros_like(inputs.nodes), inputs.nodes)
    z = encode(ops, recipe, replace(inputs, nodes=seen))
    guess = ops.affine(z.float(), ops.weight(f"{_DECODER}.weight"), ops.weight(f"{_DECODER}.bias"))
    asked = truth[hidden].float()
    spread = ((asked - asked.mean(dim=0)) ** 2).mean().clamp(min=1e-6)
    return ((guess[hidden] - asked) ** 2).mean() / spread
