"""Lab: fitting of graph networks to measured workloads, on a CPU or a GPU.

Inputs and targets are standardised logarithms (raw values for recipes as published); a missing truth is masked.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.errors import InputError
from lab.papers.graph_networks.arrays import SCHEMA, GraphArrays
from lab.papers.graph_networks.forward import ENCODER, Inputs, embed, flow_of, forward, log_targets
from lab.papers.graph_networks.loop import Loop, Progress, Record, best_record
from lab.papers.graph_networks.merging import can_merge
from lab.papers.graph_networks.onnx_model import to_onnx
from lab.papers.graph_networks.recipes import Recipe
from lab.papers.graph_networks.scales import Sample, column_scales, log_bounds, log_truths, sample_scales
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
from lab.papers.graph_networks.weights import Weights, initial_weights

# columns of an embedding that move by less are left out: divided by next to nothing, they would tell other graphs, or
# an encoder that is trained on, apart by a thousand deviations
_LEAST_SPREAD = 0.05
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
        placed = DeviceGraphs.place(graphs, self.recipe, device, merged=True)
        parts = (placed.pick(part) for part in placed.parts(np.arange(len(placed))))
        logs = _log_predictions(to_tensors(self.weights, device), self.recipe, parts).cpu().numpy()
        values = np.exp(logs.astype(np.float64) + log_bounds(graphs, self.recipe))
        return {name: values[:, i] for i, name in enumerate(self.recipe.targets)}

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
    save_every_s: float = 0.0,
    captured: bool = False,
    narrow: bool | None = None,
) -> Fitted:
    """Fit a network to samples, each a graph and its truths, of which some may be None.

    ``checkpoint`` is written after every epoch, and read where it exists. ``encoder`` gives the embedding of a recipe
    that has one. ``start`` is a fitted network to start from (transfer), with its scales and its encoder. ``seconds``
    limits all epochs together; one is always run. With ``captured``, steps have fixed shapes where the recipe can merge
    nodes, and a GPU replays them. ``narrow`` computes nodes in 16 bits while fitting: a GPU does so unless told not to,
    and a processor that multiplies bfloat16 needs half the time for it.
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
        weights |= column_scales("embedding", pooled.cpu().numpy(), recipe, _LEAST_SPREAD)
    tensors = to_tensors(weights, device)
    if recipe.embedding == "frozen":
        for name, tensor in tensors.items():
            # a frozen encoder gets no gradients
            tensor.requires_grad_(tensor.requires_grad and not name.startswith(ENCODER))
    identity = _identity(recipe, seed, weights, (training_side, validation_side))
    loop = Loop(recipe, recipe.epochs, recipe.rate, seed, device, identity, seconds, save_every_s)
    narrow = device.startswith("cuda") if narrow is None else narrow
    trainer = _Trainer(tensors, recipe, training_side, seed, captured and can_merge(recipe), narrow)
    parts = validation_side.parts(recipe)
    best, history = loop.run(
        tensors, trainer.epoch, lambda: _errors(tensors, recipe, parts, validation_side.logs), progress, checkpoint
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
        graphs = DeviceGraphs.place([graph for graph, _ in samples], recipe, device, merged=True)
        embedding = _embeddings(weights, recipe, graphs, device) if recipe.embedding == "frozen" else None
        return cls(graphs, embedding, torch.tensor(log_truths(samples, recipe), dtype=torch.float32, device=device))

    def parts(self, recipe: Recipe) -> list[Inputs]:
        """All graphs in parts that fit into memory, with their edges sorted: they are asked after every epoch."""
        stacked = (self.graphs.pick(p, self.embedding) for p in self.graphs.parts(np.arange(len(self.graphs))))
        if recipe.embedding == "trained" or recipe.block == "none":
            return list(stacked)  # an encoder hears along other edges
        ops = TorchOperations({})
        return [replace(inputs, flow=flow_of(ops, inputs, recipe.direction)) for inputs in stacked]


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


def _log_predictions(weights: Tensors, recipe: Recipe, parts: Iterable[Inputs]) -> Tensor:
    ops = TorchOperations(weights)
    with torch.no_grad():
        return torch.cat([log_targets(ops, recipe, forward(ops, recipe, inputs)) for inputs in parts])


class _Trainer:
    """Epochs over the training side, by captured steps or by plain ones."""

    def __init__(
        self, tensors: Tensors, recipe: Recipe, side: _Side, seed: int, captured: bool, narrow: bool
    ) -> None:  # fmt: skip
        momentum = BATCH_NORM_MOMENTUM if recipe.embedding == "trained" else None
        self._ops = TorchOperations(tensors, dropping=True, momentum=momentum, narrow_nodes=narrow)
        self._recipe, self._side, self._seed, self._captured = recipe, side, seed, captured
        self._labels = int(torch.isfinite(side.logs).sum())
        self._steps: FixedSteps | None = None

    def epoch(self, epoch: int, optimizer: Any) -> Record:
        """One epoch in an order of its own; the mean loss of a label."""
        random = np.random.default_rng((self._seed, epoch))
        order = random.permutation(len(self._side.graphs)).astype(np.int64)
        if self._captured:
            if self._steps is None:
                batches = FixedBatches(self._side.graphs, self._side.embedding, self._side.logs)
                on_gpu = self._side.logs.is_cuda
                self._steps = FixedSteps(batches, self._loss, optimizer, self._recipe, captured=on_gpu)
            return {"loss": self._steps.epoch(order) / max(self._labels, 1)}
        total = self._side.logs.new_zeros(())
        for begin in range(0, len(order), self._recipe.batch):
            total += self._step(order[begin : begin + self._recipe.batch], optimizer)
        return {"loss": float(total) / max(self._labels, 1)}

    def _step(self, batch: NDArray[np.int64], optimizer: Any) -> Tensor:
        side = self._side
        known = torch.isfinite(side.logs[torch.from_numpy(batch).to(side.logs.device)]).sum()
        optimizer.zero_grad(set_to_none=True)
        total = side.logs.new_zeros(())
        for part in side.graphs.parts(batch):
            logs = side.logs[torch.from_numpy(part).to(side.logs.device)]
            losses, _ = self._loss(side.graphs.pick(part, side.embedding), logs)
            # a batch may be done in parts: divide by the labels of the whole batch
            (losses / known.clamp(min=1)).backward()
            total += losses.detach()
        optimizer.step()
        return total

    def _loss(self, inputs: Inputs, logs: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of all losses, and the number of labels."""
        known = torch.isfinite(logs)
        out = forward(self._ops, self._recipe, inputs)
        return torch.where(known, target_losses(self._ops, self._recipe, out, logs), 0.0).sum(), known.sum()


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


def _errors(tensors: Tensors, recipe: Recipe, parts: Sequence[Inputs], logs: Tensor) -> Record:
    """The mean absolute relative error of each target, and that which chooses the epoch (``score``)."""
    errors = (torch.exp(_log_predictions(tensors, recipe, parts) - logs) - 1).abs().double().cpu().numpy()
    known = np.isfinite(logs.cpu().numpy())
    columns = {name: errors[rows, i] for i, (name, rows) in enumerate(zip(recipe.targets, known.T)) if rows.any()}
    record = {name: float(column.mean()) for name, column in columns.items()}
    overall = float(errors[known].mean()) if known.any() else math.nan
    return record | {"score": record.get(recipe.chosen_by, overall)}
