"""Lab: the forward pass of a graph network, written once and run twice: by torch to fit it, and by a writer of ONNX.

Layers: GraphSAGE (Hamilton et al., 2017, mean of neighbours), GCN (Kipf, Welling, 2017), GAT (Veličković et al., 2018),
GIN (Xu et al., 2019, ε = 0), and the convolution of BRP-NAS over A + I with a node that is connected to all others.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lab.papers.graph_networks.arrays import SHARES
from lab.papers.graph_networks.recipes import NODE_WIDTHS, Recipe

# a tensor of torch or of an ONNX graph; both have + − * / @
Value = Any
GAT_SLOPE = 0.2
ENCODER = "encoder"


class Operations(Protocol):
    """The operations of a forward pass beside arithmetic; rows are nodes, edges or graphs."""

    def weight(self, name: str) -> Value:
        """A learned or fixed array by its name."""
        ...

    def constant(self, value: NDArray[np.float32]) -> Value:
        """An array that is not a weight."""
        ...

    def narrow(self, x: Value) -> Value:
        """x in the precision in which nodes are computed while fitting."""
        ...

    def cast_like(self, x: Value, other: Value) -> Value:
        """x in the precision of another value."""
        ...

    def relu(self, x: Value, slope: float = 0.0) -> Value:
        """x, or slope × x below 0."""
        ...

    def exp(self, x: Value) -> Value:
        """e to the x."""
        ...

    def log(self, x: Value) -> Value:
        """The natural logarithm."""
        ...

    def softplus(self, x: Value) -> Value:
        """log(1 + exp(x))."""
        ...

    def absolute(self, x: Value) -> Value:
        """|x|."""
        ...

    def sign(self, x: Value) -> Value:
        """−1, 0 or 1."""
        ...

    def clip_min(self, x: Value, minimum: float) -> Value:
        """The larger of x and a number."""
        ...

    def concat(self, parts: Sequence[Value], axis: int) -> Value:
        """Parts side by side (1) or one after the other (0)."""
        ...

    def edge_ends(self, edges: Value) -> tuple[Value, Value]:
        """The makers and the readers of all edges."""
        ...

    def rows(self, x: Value, index: Value) -> Value:
        """Rows selected by number."""
        ...

    def sum_into(self, x: Value, index: Value, like: Value) -> Value:
        """The sum of the rows with each number, with as many rows as ``like``."""
        ...

    def count_into(self, index: Value, like: Value) -> Value:
        """How often each number occurs, as a column with as many rows as ``like``."""
        ...

    def max_into(self, x: Value, index: Value, start: Value) -> Value:
        """The largest of ``start`` and the rows with each number."""
        ...

    def routes(self, source: Value, target: Value, like: Value) -> Value:
        """The edges in the form that `neighbours` needs; ``like`` has one row for each node."""
        ...

    def neighbours(self, x: Value, routes: Value) -> Value:
        """For every node the sum of the rows that reach it."""
        ...

    def affine(self, x: Value, weight: Value, addend: Value) -> Value:
        """x · W + a row or a matrix."""
        ...

    def unit_rows(self, x: Value) -> Value:
        """Rows scaled to the Euclidean length 1; rows of zeros stay."""
        ...

    def layer_norm(self, x: Value, name: str) -> Value:
        """Rows of mean 0 and deviation 1, then scaled and shifted."""
        ...

    def batch_norm(self, x: Value, name: str) -> Value:
        """Columns of mean 0 and deviation 1, then scaled and shifted."""
        ...

    def dropout(self, x: Value, share: float, /) -> Value:
        """While fitting, zeros for a share of the values."""
        ...


@dataclass(frozen=True)
class Inputs:
    """A stack of graphs; ``embedding`` is their pooled embedding where it is known already.

    Where equal nodes were merged, ``counts`` has the number of nodes of each row (`merging`), and edges go from who
    speaks to who hears. ``flow`` has the edges in their final form where they are known already.
    """

    nodes: Value
    edges: Value
    graph_index: Value
    whole: Value
    embedding: Value | None = None
    counts: Value | None = None
    flow: "Flow | None" = None


@dataclass(frozen=True)
class Flow:
    """The edges along which messages go, and how many reach each node."""

    source: Value
    target: Value
    reached: Value
    routes: Value


def flow_of(ops: Operations, inputs: Inputs, direction: str) -> Flow:
    """Messages from makers to readers, from readers to makers, or both ways."""
    if inputs.flow is not None:
        return inputs.flow
    maker, reader = ops.edge_ends(inputs.edges)
    is_resolved = inputs.counts is not None
    source, target = (reader, maker) if direction == "backward" and not is_resolved else (maker, reader)
    if direction == "mutual" and not is_resolved:
        source, target = ops.concat([maker, reader], 0), ops.concat([reader, maker], 0)
    routes = ops.routes(source, target, inputs.nodes)
    return Flow(source, target, ops.count_into(target, inputs.nodes), routes)


def forward(ops: Operations, recipe: Recipe, inputs: Inputs) -> Value:
    """One row for each graph, one column for each target, in the scale of training; see `log_targets`."""
    whole = scale(ops, inputs.whole, "whole")
    parts = []
    if recipe.block == "brp":
        parts.append(_global_node(ops, recipe, inputs))
    elif recipe.block != "none":
        parts.append(_pooled(ops, recipe, inputs))
    if recipe.embedding == "zeros":
        width = recipe.encoder_widths[-1]
        parts.append(whole @ ops.constant(np.zeros((len(recipe.columns), width), np.float32)))
    elif recipe.embedding != "none":
        embedding = inputs.embedding if inputs.embedding is not None else embed(ops, recipe, inputs)
        parts.append(scale(ops, embedding, "embedding"))
    x = ops.concat([*parts, whole], 1)
    for number in range(recipe.dense):
        x = ops.dropout(ops.relu(linear(ops, x, f"dense.{number}")), recipe.dropout)
    return linear(ops, x, "out")


def log_targets(ops: Operations, recipe: Recipe, out: Value) -> Value:
    """The output of `forward` as natural logarithms of the targets in their units."""
    if recipe.published:
        # −logsigmoid(x) = softplus(−x)
        out = ops.log(ops.clip_min(ops.softplus(out * -1.0), 1e-30))
    return out * ops.weight("targets.scale") + ops.weight("targets.shift")


def linear(ops: Operations, x: Value, name: str) -> Value:
    """x · W + b."""
    return ops.affine(x, ops.cast_like(ops.weight(f"{name}.weight"), x), ops.cast_like(ops.weight(f"{name}.bias"), x))


def scale(ops: Operations, x: Value, name: str) -> Value:
    """Standardised inputs: ± log2(1 + |x|) where ``logged`` is 1 (not for one-hot columns), then shifted and scaled."""
    logged = ops.weight(f"{name}.logged")
    logs = ops.sign(x) * ops.log(ops.absolute(x) * logged + 1.0) * (1 / math.log(2))
    return (logs + x * (logged * -1.0 + 1.0) - ops.weight(f"{name}.shift")) * ops.weight(f"{name}.scale")


def _pooled(ops: Operations, recipe: Recipe, inputs: Inputs) -> Value:
    x = ops.narrow(scale(ops, inputs.nodes, "nodes"))
    flow = flow_of(ops, inputs, recipe.direction)
    for block in range(recipe.blocks):
        for layer in range(recipe.layers):
            x = ops.relu(graph_layer(ops, recipe, x, flow, f"block.{block}.{layer}"))
        x = ops.dropout(x, recipe.dropout)
    pooled = _sum_nodes(ops, x, inputs)
    if recipe.readout == "mean":
        return pooled / ops.clip_min(ops.count_into(inputs.graph_index, inputs.whole), 1.0)
    pooled = pooled * ops.weight("readout.scale")
    if recipe.readout == "bound":
        columns = np.eye(NODE_WIDTHS[recipe.nodes], dtype=np.float32)[:, -SHARES:]
        shares = [inputs.nodes @ ops.constant(columns[:, place : place + 1]) for place in range(SHARES)]
        return ops.concat([pooled, *(_sum_nodes(ops, x, inputs, share) for share in shares)], 1)
    return pooled


def graph_layer(ops: Operations, recipe: Recipe, x: Value, flow: Flow, name: str) -> Value:
    """One layer of message passing, without its activation."""
    if recipe.block == "gcn":
        shrink = ops.cast_like(ops.exp(ops.log(flow.reached + 1.0) * -0.5), x)  # + 1: the node itself counts
        own = x * shrink
        return linear(ops, (ops.neighbours(own, flow.routes) + own) * shrink, name)
    if recipe.block == "gin":
        return linear(ops, ops.relu(linear(ops, x + ops.neighbours(x, flow.routes), f"{name}.first")), name)
    if recipe.block == "gat":
        return _attention(ops, recipe, x, flow, name)
    x = sage(ops, x, flow, name)
    return ops.unit_rows(x) if recipe.normalise else x


def sage(ops: Operations, x: Value, flow: Flow, name: str) -> Value:
    """The mean of the neighbours and the node itself, each through a matrix of its own."""
    mean = ops.neighbours(x, flow.routes) / ops.cast_like(ops.clip_min(flow.reached, 1.0), x)
    return ops.affine(x, ops.cast_like(ops.weight(f"{name}.own.weight"), x), linear(ops, mean, name))


def attention_shares(ops: Operations, recipe: Recipe, x: Value, flow: Flow, name: str) -> tuple[Value, Value]:
    """The attention of every edge and of every node to itself; they add up to 1 at every node and head."""
    heads = _heads(recipe)
    sent, received = (
        ops.cast_like(x @ ops.cast_like(ops.weight(f"{name}.{end}.weight") * ops.constant(heads.T), x), flow.reached)
        for end in ("sent", "heard")
    )
    of_edge = ops.relu(ops.rows(sent, flow.source) + ops.rows(received, flow.target), GAT_SLOPE)
    of_self = ops.relu(sent + received, GAT_SLOPE)
    largest = ops.max_into(of_edge, flow.target, of_self)
    # subtract the largest score before exp: softmax without overflow
    of_edge, of_self = ops.exp(of_edge - ops.rows(largest, flow.target)), ops.exp(of_self - largest)
    total = ops.sum_into(of_edge, flow.target, of_self) + of_self
    return of_edge / ops.rows(total, flow.target), of_self / total


def _attention(ops: Operations, recipe: Recipe, x: Value, flow: Flow, name: str) -> Value:
    x = x @ ops.cast_like(ops.weight(f"{name}.weight"), x)
    of_edge, of_self = attention_shares(ops, recipe, x, flow, name)
    heads = ops.constant(_heads(recipe))
    received = ops.sum_into(ops.rows(x, flow.source) * ops.cast_like(of_edge @ heads, x), flow.target, x)
    return received + x * ops.cast_like(of_self @ heads, x) + ops.cast_like(ops.weight(f"{name}.bias"), x)


def _heads(recipe: Recipe) -> NDArray[np.float32]:
    """A heads × width matrix of 0 and 1: which columns belong to which head."""
    return np.repeat(np.eye(recipe.heads, dtype=np.float32), recipe.width // recipe.heads, axis=1)


def _global_node(ops: Operations, recipe: Recipe, inputs: Inputs) -> Value:
    """BRP-NAS: one more node for each graph; it receives from all nodes and itself, and no other receives from it."""
    x, state = ops.narrow(scale(ops, inputs.nodes, "nodes")), None
    flow = flow_of(ops, inputs, recipe.direction)
    for number in range(recipe.blocks):
        name = f"block.{number}.0"
        total = _sum_nodes(ops, x, inputs)
        state = linear(ops, total if state is None else total + state, name)
        if number == 0:  # the one-hot of the global node selects one row of the first matrix, which is this weight
            state = state + ops.weight("global.weight")
        x = linear(ops, x + ops.neighbours(x, flow.routes), name)
        x, state = (ops.dropout(ops.relu(ops.layer_norm(y, f"{name}.norm")), recipe.dropout) for y in (x, state))
    return state


def embed(ops: Operations, recipe: Recipe, inputs: Inputs) -> Value:
    """TraPPM's encoder, summed over the nodes of each graph."""
    return _sum_nodes(ops, encode(ops, recipe, inputs), inputs)


def _sum_nodes(ops: Operations, x: Value, inputs: Inputs, weights: Value | None = None) -> Value:
    """The sum over the nodes of each graph; a row counts as often as the nodes that it stands for."""
    x = ops.cast_like(x, inputs.whole)
    x = x if weights is None else x * weights
    return ops.sum_into(x if inputs.counts is None else x * inputs.counts, inputs.graph_index, inputs.whole)


def encode(ops: Operations, recipe: Recipe, inputs: Inputs) -> Value:
    """TraPPM's encoder: one row for each node."""
    x = ops.narrow(scale(ops, inputs.nodes, f"{ENCODER}.nodes"))
    flow = flow_of(ops, inputs, "forward")
    last = len(recipe.encoder_widths) - 1
    for number in range(last + 1):
        x = ops.batch_norm(sage(ops, x, flow, f"{ENCODER}.{number}"), f"{ENCODER}.{number}.norm")
        if number < last:
            x = ops.dropout(ops.relu(x), recipe.encoder_dropout)
    return ops.relu(x) if recipe.last_relu else x
