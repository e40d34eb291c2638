"""Predictors: parallel: a training step in the parts that frameworks overlap with communication.

Idea: the units of work of a step have times, an order and a node. From them follow when the gradient of each parameter
is ready (after the backward of the first node that reads it), and how long the forward and the backward of each block
takes. A block is a numbered module, such as ``layers.3`` or ``layer1.0``: what people wrap with FSDP. Parameters
outside of blocks belong to the root.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretell.features import Units, extract_units
from foretell.features.pooled import DistinctUnits
from foretell.features.units import COLUMNS
from foretell.graph import Graph
from foretell.graph.ir.operators import lookup
from foretell.graph.memory.autograd import needing_gradients, reached_by_loss
from foretell.predictors.explain import unit_times
from foretell.predictors.protocol import Predictor
from foretell.records import Workload

ROOT = ""
_REPLICATED = frozenset({"Add", "Sum", "Dropout"})  # residuals, which every GPU has whole


@dataclass(frozen=True, slots=True)
class Block:
    """A numbered module: shares of the step's time, and the bytes of its parameters."""

    name: str
    forward: float
    backward: float
    parameter_bytes: int


@dataclass(frozen=True)
class StepParts:
    """A step. Times are shares of the whole.

    ``ready`` has (share of backward that is over, bytes) for each gradient, in the order in which they are ready.
    ``splittable`` is the share of the time, without the optimizer, that tensor parallelism divides.
    ``moved`` is the part of the optimizer's share that moves bytes: it falls with the parameters, launches do not.
    ``attentions`` has the heads, and the bytes of the result, of every attention.
    """

    forward: float
    backward: float
    optimizer: float
    ready: tuple[tuple[float, int], ...]
    blocks: tuple[Block, ...]
    splittable: float
    moved: float
    attentions: tuple[tuple[int, int], ...]

    @property
    def parameter_bytes(self) -> int:
        """The bytes of all parameters that are trained."""
        return sum(size for _, size in self.ready)


def step_parts(workload: Workload, predictor: Predictor) -> StepParts:
    """Take a training step apart; its units have the times that the predictor gives them."""
    units, graph = extract_units(workload), workload.running_graph
    distinct = DistinctUnits.of(units)
    times = unit_times(workload, predictor, distinct)[0][distinct.member]
    shares: NDArray[np.float64] = times / times.sum()
    phases = np.array(units.phases)
    sums = {phase: float(shares[phases == phase].sum()) for phase in ("forward", "backward", "optimizer")}
    return StepParts(
        **sums,
        ready=_ready(graph, units, shares),
        blocks=_blocks(graph, units, shares),
        splittable=_splittable(graph, units, shares),
        moved=_moved(units, times),
        attentions=_attentions(graph),
    )


def _trained(graph: Graph) -> dict[str, int]:
    """Parameters that get a gradient, with their bytes."""
    reached = reached_by_loss(graph, needing_gradients(graph))
    return {n: t.bytes for n, t in graph.tensors.items() if t.kind == "parameter" and n in reached}


def _first_readers(graph: Graph) -> dict[str, int]:
    """The first node that reads each parameter: its backward is the last that adds to the gradient."""
    first: dict[str, int] = {}
    for position, node in enumerate(graph.nodes):
        for name in node.inputs:
            first.setdefault(name, position)
    return first


def _ready(graph: Graph, units: Units, shares: NDArray[np.float64]) -> tuple[tuple[float, int], ...]:
    """When gradients are ready. The backward goes from the last node to the first."""
    done = np.zeros(len(graph.nodes) + 1)
    for phase, nodes, share in zip(units.phases, units.nodes, shares.tolist(), strict=True):
        if phase == "backward":
            done[nodes[0]] += share
    passed = done[::-1].cumsum()[::-1]  # of the backward, when that of a node is over
    first = _first_readers(graph)
    return tuple(sorted((float(passed[first[name]]), size) for name, size in _trained(graph).items() if name in first))


def _blocks(graph: Graph, units: Units, shares: NDArray[np.float64]) -> tuple[Block, ...]:
    """The root, then all blocks in the order in which they run."""
    names = [block_name(node.module) for node in graph.nodes]
    spent: dict[str, defaultdict[str, float]] = {"forward": defaultdict(float), "backward": defaultdict(float)}
    for phase, nodes, share in zip(units.phases, units.nodes, shares.tolist(), strict=True):
        if phase in spent:
            spent[phase][names[nodes[0]]] += share
    sizes: defaultdict[str, int] = defaultdict(int)
    first = _first_readers(graph)
    for name, size in _trained(graph).items():
        if name in first:
            sizes[names[first[name]]] += size
    order = dict.fromkeys((ROOT, *names))
    return tuple(Block(n, spent["forward"][n], spent["backward"][n], sizes[n]) for n in order)


def block_name(module: str) -> str:
    """The numbered module that a module lies in; the root if there is none.

    >>> block_name("model.layers.3.mlp.down_proj"), block_name("layer1.0.conv1"), block_name("fc")
    ('model.layers.3', 'layer1.0', '')
    """
    parts = module.split(".")
    number = next((place for place, part in enumerate(parts) if part.isdigit()), None)
    return ROOT if number is None else ".".join(parts[: number + 1])


def _splittable(graph: Graph, units: Units, shares: NDArray[np.float64]) -> float:
    """What Megatron's tensor parallelism divides: everything but norms, residuals and dropout."""
    total = 0.0
    for phase, operator, nodes, share in zip(units.phases, units.operators, units.nodes, shares.tolist(), strict=True):
        if phase == "optimizer":
            continue
        node = graph.nodes[nodes[0]]
        if operator not in _REPLICATED and lookup(node.op, node.domain).kind != "normalisation":
            total += share
    return total


def _moved(units: Units, times_us: NDArray[np.float64]) -> float:
    """The time in which the optimizer's bytes could move, at most its own, as a share of the step."""
    own = np.array(units.phases) == "optimizer"
    moved_us = np.exp2(units.features[own, COLUMNS.index("log_memory_us")].astype(np.float64))
    return float(np.minimum(moved_us, times_us[own]).sum() / times_us.sum())


def _attentions(graph: Graph) -> tuple[tuple[int, int], ...]:
    found = []
    for node in graph.nodes:
        if node.op == "Attention" and node.outputs and node.outputs[0]:
            query, out = graph.tensors[node.inputs[0]], graph.tensors[node.outputs[0]]
            heads = int(query.shape[1]) if len(query.shape) == 4 else node.integer("q_num_heads", 0)
            if heads:
                found.append((heads, out.bytes))
    return tuple(found)
