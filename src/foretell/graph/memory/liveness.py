"""Graph: peak memory from the lifetime of every tensor.

Idea: a storage is allocated by the node that makes its tensor, and freed after the last node that can still touch it.
The list of all allocations and frees of a run is a `Tape`. The peak is the largest sum of live blocks on that tape
(`live_peak`), or what PyTorch's caching allocator reports when the tape is replayed (`cached_peak`).

Where the program itself was watched (`Graph.held`), the end of every tensor is known. Otherwise it is guessed, from
three things that keep a storage alive longer than its last reader. First, views: a storage lives until the last of all
tensors that lie in it (`foretell.graph.ir.layout`) is dead. Second, callers: eager PyTorch frees a tensor when no
Python reference is left, and the frame that calls ``module(x)`` holds ``x`` until the module returns. So a tensor that
is made outside a module and read inside it lives until the last node of that call. Which frame a node runs in is known
from its module path (``layer1.0.conv1``). Third, skip connections: a tensor that is read several times, last by a
Concat, is taken to be a local variable of the frame that encloses producer and reader, and lives until it returns.

Source: the reference counts of CPython frames, compared with ``torch.cuda.max_memory_allocated`` on an H200; replaying
an allocator instead of adding up tensors is the idea of xMem (arXiv 2510.21048). ``docs/lab/0010-memory.md`` has the
errors.

Limits of guessing: ``x = up(cat([skip, x]))`` holds the old ``x`` until ``up`` returns, and ``x = up(x)`` on a line of
its own does not; both look the same (U-Nets are 8 % off, ``docs/lab/0027-memory-interpreter.md``). Graphs without
module paths, such as many ONNX files, are treated as one frame.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING

from foretell.frozen import dataclass
from foretell.graph.ir.graph import Graph
from foretell.graph.ir.layout import Layout, layouts
from foretell.graph.ir.node import Node
from foretell.graph.memory.allocator import BLOCK_BYTES, CachingAllocator, Plan, Tape
from foretell.graph.memory.operand_copies import einsum_between, operand_copies
from foretell.graph.memory.workspaces import INDEX_BYTES, library_blocks
from foretell.graph.signatures import Record
from foretell.graph.wiring import numbers_of, wiring

if TYPE_CHECKING:
    from foretell.graph.wiring import Numbers

_MAX_KEPT_EVENTS = 5_000  # of a tape whose peak is kept
_MAX_SCORES = 8  # of tapes of one structure that are kept
_STATE = ("parameter", "buffer", "constant")


@dataclass(frozen=True, slots=True)
class Peak:
    """The largest sum of live bytes, and the node where it occurs. ``state_bytes`` of it stay between runs."""

    bytes: int
    state_bytes: int
    node: str

    @property
    def activation_bytes(self) -> int:
        """The bytes that the run itself adds."""
        return self.bytes - self.state_bytes


def state_bytes(graph: Graph) -> int:
    """The bytes of parameters, buffers and constants, each rounded up to whole blocks."""
    return _in_blocks(_state_sizes(graph))


def _in_blocks(sizes: Iterable[int]) -> int:
    """The sum of sizes, each rounded up to whole blocks."""
    return sum([-(-size // BLOCK_BYTES) for size in sizes]) * BLOCK_BYTES


def _state_sizes(graph: Graph) -> tuple[int, ...]:
    """The bytes of each parameter, buffer and constant that is not empty, in the order of the graph."""
    if "bodies" not in graph.structure:
        graph.structure["bodies"] = [body for node in graph.nodes for body in node.bodies]
    sizes = layouts(graph).bytes
    return (
        *[size for number in numbers_of(graph, *_STATE) if (size := sizes[number])],
        *(size for body in graph.structure["bodies"] for size in _state_sizes(body)),
    )


def inference_peak(graph: Graph) -> Peak:
    """Return the peak memory of one eager forward pass; the module's docstring says how long tensors live."""
    return live_peak(graph, inference_tape(graph))


def live_peak(graph: Graph, tape: Tape, persistent: Sequence[int] = ()) -> Peak:
    """Return the largest sum of live blocks: the model, its inputs, ``persistent`` blocks, and the tape."""
    state = state_bytes(graph) + _in_blocks(persistent)
    inputs = _in_blocks(graph.tensors[n].bytes for n in graph.inputs)
    peak_bytes, node = tape.peak()
    return Peak(state + inputs + peak_bytes, state, node)


def cached_peak(graph: Graph, tape: Tape, persistent: Sequence[int] = (), workspaces: Sequence[int] = ()) -> Peak:
    """Return the peak as PyTorch's caching allocator counts it over two runs.

    The second run finds the blocks that the first one freed, and may get larger ones than it asked for. ``persistent``
    are the sizes that the first run allocates and that stay, such as optimizer states; ``workspaces`` are those that
    libraries hold from their first use on.
    """
    state, inputs = _state_sizes(graph), tuple([graph.tensors[name].bytes for name in graph.inputs])
    # a model is asked about again and again, for other devices and limits
    replayed = _replayed if len(tape.events) <= _MAX_KEPT_EVENTS else _replayed.__wrapped__
    most, event = replayed(state, inputs, tuple(workspaces), tuple(persistent), tuple(tape.events))
    return Peak(most, _in_blocks(state) + _in_blocks(persistent), tape.node_at(event))


@lru_cache(maxsize=128)
def _replayed(
    state: tuple[int, ...],
    inputs: tuple[int, ...],
    workspaces: tuple[int, ...],
    persistent: tuple[int, ...],
    events: tuple[int, ...],
) -> tuple[int, int]:
    """The most that is allocated at a time over two runs, and the event that reaches it."""
    allocator = CachingAllocator.holding(state)
    for size in (*inputs, *workspaces):
        allocator.allocate(size)
    plan = Plan.of(events)
    first = allocator.serve(plan)
    # optimizer states appear at the end of the first step, so only the second run has them from the start
    for size in persistent:
        allocator.allocate(size)
    second = allocator.serve(plan)
    return first if first[0] > second[0] else second


def inference_tape(graph: Graph, *, cuda: bool = False) -> Tape:
    """Record what one forward pass allocates and frees; with ``cuda`` also the workspaces of libraries."""
    laid_out = layouts(graph)
    nodes, records = graph.nodes, laid_out.records
    extra = [
        _working(graph, nodes[position], record) if record.working is None else record.working
        for position, record in enumerate(records)
    ]
    library: list[tuple[int, ...]] = []
    if cuda:
        library = [
            _library(graph, nodes[position], record) if record.library is None else record.library
            for position, record in enumerate(records)
        ]
    blocks = extra + library
    kept, key = graph.structure.setdefault("scores", {}), (cuda, *map(len, blocks))
    storages, score = kept.get(key, (None, None))
    if storages != laid_out.storages:  # at another batch size a view may have to copy
        if len(kept) >= _MAX_SCORES:
            kept.clear()
        score = _score(graph, extra, library)
        kept[key] = list(laid_out.storages), score
    sizes = [*laid_out.bytes, *chain.from_iterable(blocks)]
    tape = Tape()
    tape.events = [event if event < 0 else sizes[event] for event in score.events]
    tape.count, tape.nodes, tape.starts = score.count, score.nodes, score.starts
    return tape


def _score(graph: Graph, extra: Sequence[tuple[int, ...]], library: Sequence[tuple[int, ...]]) -> Tape:
    """The tape with the place of each size instead of the size: among the tensors, or behind them among the blocks.

    It depends on the edges, on which tensors share storage, and on how many blocks each node needs.
    """
    laid_out = layouts(graph)
    outputs, storages, dies = laid_out.edges.outputs, laid_out.storages, _ends(graph)
    tape, numbers, none = Tape(), dict[int, int](), list[int]()
    events, starts, count = tape.events, tape.starts, 0
    # the next place among the sizes for what nodes themselves need, and for what libraries do
    next_extra = len(laid_out.bytes)
    next_library = next_extra + sum(map(len, extra))
    for position in range(len(outputs)):
        starts.append(len(events))
        for output in outputs[position]:
            if output >= 0 and storages[output] == output:  # a view allocates nothing
                numbers[output] = count
                events.append(output)
                count += 1
        if extra[position]:
            size = len(extra[position])
            events.extend(range(next_extra, next_extra + size))
            events.extend(range(~count, ~(count + size), -1))
            next_extra, count = next_extra + size, count + size
        if library and library[position]:
            size = len(library[position])
            events.extend(range(next_library, next_library + size))
            events.extend(range(~count, ~(count + size), -1))
            next_library, count = next_library + size, count + size
        for storage in dies.get(position, none):
            if storage in numbers:
                events.append(~numbers.pop(storage))
    events.extend([~number for number in numbers.values()])
    tape.count, tape.nodes = count, [node.name for node in graph.nodes]
    return tape


def _working(graph: Graph, node: Node, record: Record) -> tuple[int, ...]:
    record.working = tuple(working_blocks(graph, node, layouts(graph)))
    return record.working


def _library(graph: Graph, node: Node, record: Record) -> tuple[int, ...]:
    record.library = tuple(library_blocks(graph, node, layouts(graph)))
    return record.library


def deaths(graph: Graph) -> Mapping[int, list[str]]:
    """Map the position of a node to the storages that no one can touch after it."""
    names = layouts(graph).edges.names
    return {position: [names[storage] for storage in storages] for position, storages in _ends(graph).items()}


def _ends(graph: Graph) -> Mapping[int, list[int]]:
    """The same with the numbers of the storages, in the order in which they come to be."""
    import numpy as np  # commands that predict nothing start without it

    laid_out = layouts(graph)
    known, dies = graph.structure.get("deaths", (None, {}))
    if known == laid_out.storages:  # at another batch size a view may have to copy
        return dies  # type: ignore[no-any-return]
    if "last use" not in graph.structure:
        graph.structure["last use"] = _last_use(graph)
    last: Numbers = graph.structure["last use"]
    storages = np.array(laid_out.storages[:-1], np.intp)
    ends = np.full(len(storages), -1, np.intp)
    np.maximum.at(ends, storages, last)  # a storage lives as long as the last of its views
    is_made = laid_out.edges.producers >= 0
    made, _ = laid_out.edges.makes
    order = np.concatenate([np.flatnonzero(~is_made), made])
    order = order[storages[order] == order]
    dies = {}
    for storage, position in zip(order.tolist(), ends[order].tolist(), strict=True):
        known_here = dies.get(position)
        if known_here is None:
            dies[position] = [storage]
        else:
            known_here.append(storage)
    graph.structure["deaths"] = list(laid_out.storages), dies
    return dies


def working_blocks(graph: Graph, node: Node, laid_out: Mapping[str, Layout]) -> list[int]:
    """The sizes that a node needs besides its inputs and outputs while it runs: sub-graphs, copies, indices."""
    blocks = [inference_peak(body).activation_bytes for body in node.bodies]
    blocks += [*operand_copies(graph, node, laid_out).values(), *einsum_between(graph, node, laid_out)]
    if node.op in ("MaxPool", "AdaptiveMaxPool") and len(node.outputs) == 1:
        # PyTorch's kernel always writes the indices of the maxima, too
        blocks.append(graph.tensors[node.outputs[0]].elements * INDEX_BYTES)
    elif node.op in ("LSTM", "GRU", "RNN") and node.inputs and node.outputs and node.outputs[0]:
        if node.integer("batch_first", 0):
            blocks.append(graph.tensors[node.inputs[0]].bytes)  # a copy with the time steps first
        if node.integer("layers", 1) > 1:
            blocks.append(graph.tensors[node.outputs[0]].bytes)  # what one layer hands to the next
    return blocks


def _last_use(graph: Graph) -> Numbers:
    """The position of the last node that can touch each tensor, by its number; −1 where none can."""
    end, edges = len(graph.nodes), wiring(graph)
    if graph.held is not None:
        last = _watched_last_use(graph, graph.held)
    elif any(node.module for node in graph.nodes):
        last = _guessed_last_use(graph)
    else:  # one frame, which lets go of a tensor after its last reader
        last = _watched_last_use(graph, {})
    # inputs and outputs belong to the caller of the model
    last[[edges.numbers[name] for name in (*graph.inputs, *graph.outputs)]] = end
    return last


def _guessed_last_use(graph: Graph) -> Numbers:
    """The last use where the paths of modules say which frames hold a tensor."""
    edges, end = wiring(graph), len(graph.nodes)
    split_paths = {path: path.split(".") if path else [] for path in {node.module for node in graph.nodes}}
    modules = [split_paths[node.module] for node in graph.nodes]
    returns = _module_returns(modules)
    last = edges.producers.copy()  # a tensor that no node reads is freed at once
    for name, readers in graph.consumers.items():
        if graph.tensors[name].kind not in ("input", "activation"):
            continue
        producer_path = modules[graph.producers[name]] if name in graph.producers else []
        # readers inside modules that were called with the tensor hold it until these return
        until = max(_held_until(position, modules[position], producer_path, returns) for position in readers)
        # a skip connection
        if len(readers) > 1 and graph.nodes[readers[-1]].op == "Concat":
            until = max(until, _frame_end(readers[-1], modules[readers[-1]], producer_path, returns, end))
        last[edges.numbers[name]] = until
    return last


def _watched_last_use(graph: Graph, held: Mapping[str, str]) -> Numbers:
    """The same where the program itself was watched: nothing is guessed."""
    import numpy as np

    edges = wiring(graph)
    last = np.maximum(edges.last_readers, edges.producers)
    if held:
        positions = {node.name: position for position, node in enumerate(graph.nodes)}
        for name, node in held.items():
            if name in graph.producers and node in positions:
                number = edges.numbers[name]
                last[number] = max(last[number], positions[node])
    return last


def _held_until(position: int, reader: list[str], producer: list[str], returns: list[list[int]]) -> int:
    """The last node of the outermost module that was called with the tensor: the calling frame holds it until then.

    ``reader`` and ``producer`` are the module paths of the reading and of the producing node. If the reader lies in the
    producer's module or in one around it, no module was called with the tensor, and it can go after the reader.
    """
    shared = _shared_depth(reader, producer)
    return position if shared >= len(reader) else returns[position][shared]


def _frame_end(position: int, reader: list[str], producer: list[str], returns: list[list[int]], end: int) -> int:
    """The last node of the frame around producer and reader: a skip connection is a local variable of that frame."""
    shared = _shared_depth(reader, producer)
    if len(producer) == shared:
        return position  # made in that frame itself: the variable may have been assigned again since
    return returns[position][shared - 1] if shared else end


def _shared_depth(path: list[str], other: list[str]) -> int:
    """The number of outer modules that two paths have in common."""
    count = 0
    for a, b in zip(path, other):
        if a != b:
            break
        count += 1
    return count


def _module_returns(modules: list[list[str]]) -> list[list[int]]:
    """For each node, and each module around it from the outermost in, the last node of the same call of that module.

    A module that is called twice has two unbroken runs of nodes; each run ends by itself.
    """
    returns: list[list[int]] = [[] for _ in modules]
    path: list[str] = []
    ends: list[int] = []
    for position in range(len(modules) - 1, -1, -1):
        current = modules[position]
        if current is not path:  # equal paths are the same list: see _last_use
            shared = _shared_depth(current, path)
            ends = ends[:shared] + [position] * (len(current) - shared)
            path = current
        returns[position] = ends
    return returns
