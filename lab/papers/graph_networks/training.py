"""Lab: fitting of graph networks to measured workloads, on a CPU or a GPU.

Inputs and targets are standardised logarithms (raw values for recipes as published); a missing truth is masked.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.errors import InputError
from lab.papers.graph_networks.arrays import SCHEMA, GraphArrays
from lab.papers.graph_networks.forward import ENCODER, embed, forward, log_targets
from lab.papers.graph_networks.loop import Loop, Progress, Record, best_record
from lab.papers.graph_networks.onnx_model import to_onnx
from lab.papers.graph_networks.recipes import Recipe
from lab.papers.graph_networks.scales import Sample, column_scales, log_truths, sample_scales
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
from lab.papers.graph_networks.weights import Weights, initial_weights

BATCH_NORM_MOMENTUM = 0.1
_MAX_LOG_RATIO = 1.0  # log ratio above which the relative loss is linear: the square of e^x would overflow


@dataclass(frozen=True)
class Encoder:
    """TraPPM's encoder, pre-trained or random, with its validation loss."""

    weights: Weights
    last_relu: bool = True
    loss: float = math.nan
    history: tuple[Record, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Fitted:
    """A fitted network: the weights of its best epoch, its validation errors (0.1 is 10 %), and all epochs."""

    recipe: Recipe
    weights: Weights = field(repr=False)
    seed: int
    metrics: Record
    history: tuple[Record, ...] = field(default=(), repr=False)

    def predict(self, graphs: Sequence[GraphArrays], device: str = "cpu") -> dict[str, NDArray[np.float64]]:
        """Every target of every graph, by torch."""
        placed = DeviceGraphs.place(graphs, self.recipe, device)
        logs = _log_predictions(to_tensors(self.weights, device), self.recipe, placed).cpu().numpy()
        return {name: np.exp(logs[:, i].astype(np.float64)) for i, name in enumerate(self.recipe.targets)}

    def to_onnx(self, name: str, *, small: bool = False, notes: Mapping[str, str] | None = None) -> bytes:
        """The bytes that `GraphNetwork.load` reads; ``small`` stores large matrices in 8 bits."""
        known = {"name": name, "schema": SCHEMA, "seed": str(self.seed), "recipe": self.recipe.to_json()}
        known["metrics"] = json.dumps(self.metrics, sort_keys=True)
        return to_onnx(self.recipe, self.weights, dict(notes or {}) | known, small=small)


def fit(
    samples: Sequence[Sample],
    validation: Sequence[Sample],
    recipe: Recipe,
    seed: int = 0,
    progress: Progress = lambda _epoch, _record: None,
    device: str = "cpu",
    *,
    checkpoint: Path | None = None,
    encoder: Encoder | None = None,
    start: Fitted | None = None,
    seconds: float | None = None,
) -> Fitted:
    """Fit a network to samples, each a graph and its truths, of which some may be None.

    ``checkpoint`` is written after every epoch, and read where it exists. ``encoder`` gives the embedding of a recipe
    that has one. ``start`` is a fitted network to start from (transfer), with its scales and its encoder. ``seconds``
    limits all epochs together; one is always run.
    """
    if not samples or not validation:
        raise InputError(f"Got {len(samples)} training and {len(validation)} validation samples; give some of each.")
    weights, recipe = _first_weights(samples, recipe, seed, encoder, start)
    training_side, validation_side = (_Side.place(side, recipe, weights, device) for side in (samples, validation))
    if recipe.embedding in ("frozen", "trained") and start is None:
        pooled = (
            training_side.embedding
            if training_side.embedding is not None
            else _embeddings(weights, recipe, training_side.graphs, device)
        )
        # the scale of an embedding is known only after the encoder has run on the training side
        weights |= column_scales("embedding", pooled.cpu().numpy(), recipe)
    tensors = to_tensors(weights, device)
    if recipe.embedding == "frozen":
        for name, tensor in tensors.items():
            # a frozen encoder gets no gradients
            tensor.requires_grad_(tensor.requires_grad and not name.startswith(ENCODER))
    identity = _identity(recipe, seed, weights, (training_side, validation_side))
    loop = Loop(recipe, recipe.epochs, recipe.rate, seed, device, identity, seconds)
    best, history = loop.run(
        tensors,
        lambda epoch, optimizer: _train_epoch(
            tensors, recipe, training_side, optimizer, np.random.default_rng((seed, epoch))
        ),
        lambda: _errors(tensors, recipe, validation_side),
        progress,
        checkpoint,
    )
    record = best_record(history)
    return Fitted(recipe, to_arrays(best), seed, {n: record[n] for n in recipe.targets if n in record}, history)


@dataclass(frozen=True)
class _Side:
    """Samples on a device."""

    graphs: DeviceGraphs
    embedding: Tensor | None
    logs: Tensor

    @classmethod
    def place(cls, samples: Sequence[Sample], recipe: Recipe, weights: Weights, device: str) -> "_Side":
        graphs = DeviceGraphs.place([graph for graph, _ in samples], recipe, device)
        embedding = _embeddings(weights, recipe, graphs, device) if recipe.embedding == "frozen" else None
        return cls(graphs, embedding, torch.tensor(log_truths(samples, recipe), dtype=torch.float32, device=device))


def _first_weights(
    samples: Sequence[Sample], recipe: Recipe, seed: int, encoder: Encoder | None, start: Fitted | None
) -> tuple[Weights, Recipe]:
    weights = initial_weights(recipe, seed)
    if start is not None:
        fits = all(name in start.weights and start.weights[name].shape == w.shape for name, w in weights.items())
        if not fits:
            raise InputError("The network to start from has another shape: use the recipe that it was fitted with.")
        return dict(start.weights), replace(recipe, last_relu=start.recipe.last_relu)
    weights |= sample_scales(samples, recipe)
    if recipe.embedding in ("frozen", "trained"):
        if encoder is None:
            raise InputError(
                f"A recipe with a {recipe.embedding} embedding needs an encoder: pass the result of pretrain."
            )
        return weights | encoder.weights, replace(recipe, last_relu=encoder.last_relu)
    return weights, recipe


def _identity(recipe: Recipe, seed: int, weights: Weights, sides: Sequence[_Side]) -> str:
    """A hash of all that must be unchanged for a checkpoint to be continued."""
    digest = hashlib.sha256(f"{SCHEMA}|{recipe.to_json()}|{seed}".encode())
    for _, value in sorted(weights.items()):
        digest.update(value.tobytes())
    for side in sides:
        digest.update(side.logs.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def _embeddings(weights: Weights, recipe: Recipe, graphs: DeviceGraphs, device: str) -> Tensor:
    own = {name: value for name, value in weights.items() if name.startswith(ENCODER)}
    ops = TorchOperations(to_tensors(own, device))
    with torch.no_grad():
        return torch.cat([embed(ops, recipe, graphs.pick(part)) for part in graphs.parts(np.arange(len(graphs)))])


def _log_predictions(weights: Tensors, recipe: Recipe, graphs: DeviceGraphs, embedding: Tensor | None = None) -> Tensor:
    ops = TorchOperations(weights)
    with torch.no_grad():
        parts = [
            log_targets(ops, recipe, forward(ops, recipe, graphs.pick(part, embedding)))
            for part in graphs.parts(np.arange(len(graphs)))
        ]
        return torch.cat(parts)


def _train_epoch(tensors: Tensors, recipe: Recipe, side: _Side, optimizer: Any, random: np.random.Generator) -> Record:
    trained = recipe.embedding == "trained"
    momentum = BATCH_NORM_MOMENTUM if trained else None
    ops = TorchOperations(tensors, dropping=True, momentum=momentum, narrow_nodes=side.logs.is_cuda)
    order = random.permutation(len(side.graphs)).astype(np.int64)
    total, known = side.logs.new_zeros(()), torch.isfinite(side.logs)
    total_known = int(known.sum())
    for begin in range(0, len(order), recipe.batch):
        batch = order[begin : begin + recipe.batch]
        chosen = torch.from_numpy(batch).to(side.logs.device)
        # a batch may be done in parts: divide by the labels of the whole batch
        count = known[chosen].sum().clamp(min=1)
        optimizer.zero_grad(set_to_none=True)
        for part in side.graphs.parts(batch):
            rows = torch.from_numpy(part).to(side.logs.device)
            out = forward(ops, recipe, side.graphs.pick(part, side.embedding))
            losses = torch.where(known[rows], target_losses(ops, recipe, out, side.logs[rows]), 0.0).sum()
            (losses / count).backward()
            total += losses.detach()
        optimizer.step()
    return {"loss": float(total) / max(total_known, 1)}


def target_losses(ops: TorchOperations, recipe: Recipe, out: Tensor, logs: Tensor) -> Tensor:
    """The loss of every graph and target; ``logs`` are logarithms of the truths, and NaN entries are masked later."""
    # NaN × 0 is NaN, also in gradients: replace before masking
    logs = torch.nan_to_num(logs)
    shift, scale = ops.weight("targets.shift"), ops.weight("targets.scale")
    if recipe.published:  # raw values in the paper's units
        predicted, truth = functional.softplus(-out), torch.exp(logs - shift)
        if recipe.loss == "relative":
            return (predicted / truth - 1) ** 2
    else:
        predicted, truth = out, (logs - shift) / scale
        if recipe.loss == "relative":
            ratio = (predicted - truth) * scale
            relative = torch.exp(ratio.clamp(max=_MAX_LOG_RATIO)) - 1
            # the slope of the square at the joint: the loss stays smooth
            slope = 2 * (math.exp(_MAX_LOG_RATIO) - 1) * math.exp(_MAX_LOG_RATIO)
            return relative**2 + slope * (ratio - _MAX_LOG_RATIO).clamp(min=0)
    if recipe.loss == "huber":
        return functional.huber_loss(predicted, truth, reduction="none", delta=1.0)
    if recipe.loss == "mse":
        return (predicted - truth) ** 2
    return (predicted - truth).abs()


def _errors(tensors: Tensors, recipe: Recipe, side: _Side) -> Record:
    """The mean absolute relative error of each target, and over all of them (``score``)."""
    ratios = torch.exp(_log_predictions(tensors, recipe, side.graphs, side.embedding) - side.logs)
    errors = (ratios - 1).abs().double().cpu().numpy()
    known = np.isfinite(side.logs.cpu().numpy())
    columns = {name: errors[rows, i] for i, (name, rows) in enumerate(zip(recipe.targets, known.T)) if rows.any()}
    record = {name: float(column.mean()) for name, column in columns.items()}
    return record | {"score": float(errors[known].mean()) if known.any() else math.nan}
