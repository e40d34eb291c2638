"""graph: peak memory from the life of every tensor: made by one node, dead after the last that may still touch it."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from foretell.graph.ir.graph import Graph
from foretell.graph.ir.layout import Layout, is_contiguous, layouts, viewed_strides
from foretell.graph.ir.node import Node
from foretell.graph.memory.allocator import CachingAllocator, Tape, rounded
from foretell.graph.memory.workspaces import library_blocks

INDEX_BYTES = 8
_STATE = ("parameter", "buffer", "constant")


@dataclass(frozen=True, slots=True)
class Peak:
    """The largest sum of live bytes, and when: ``state_bytes`` of it is there before and after the run."""

    bytes: int
    state_bytes: int
    node: str

    @property
    def activation_bytes(self) -> int:
        """What the run itself adds."""
        return self.bytes - self.state_bytes


def state_bytes(graph: Graph) -> int:
    """Parameters, buffers and constants, as allocated."""
    return sum(map(rounded, _state_sizes(graph)))


def _state_sizes(graph: Graph) -> Iterator[int]:
    yield from (t.bytes for t in graph.tensors.values() if t.kind in _STATE and t.elements)
    for node in graph.nodes:
        for body in node.bodies:
            yield from _state_sizes(body)


def inference_peak(graph: Graph) -> Peak:
    """Peak memory of one forward pass.

    A tensor handed to a module is held by the caller's frame until that module returns, as PyTorch's eager mode holds
    it; where nodes carry no module path it dies after its last reader. Views keep their storage alive.
    """
    return live_peak(graph, inference_tape(graph))


def live_peak(graph: Graph, tape: Tape, kept: Sequence[int] = ()) -> Peak:
    """The most that is alive at a time, beside the model, its inputs and what else is ``kept`` from run to run."""
    state = state_bytes(graph) + sum(map(rounded, kept))
    inputs = sum(rounded(graph.tensors[n].bytes) for n in graph.inputs)
    added, where = tape.peak()
    return Peak(state + inputs + added, state, where)


def cached_peak(graph: Graph, tape: Tape, kept: Sequence[int] = (), workspaces: Sequence[int] = ()) -> Peak:
    """The same, as the caching allocator of PyTorch counts it, over two runs: the second finds what the first freed.

    ``kept`` is made by the first run and stays; ``workspaces`` are those that libraries hold from their first use on.
    """
    allocator = CachingAllocator()
    for size in _state_sizes(graph):
        allocator.take(size)
    for name in graph.inputs:
        allocator.take(graph.tensors[name].bytes)
    for size in workspaces:
        allocator.take(size)
    first, where = allocator.replay(tape)
    for size in kept:
        allocator.take(size)
    second, there = allocator.replay(tape)
    most, where = (first, where) if first > second else (second, there)
    return Peak(most, state_bytes(graph) + sum(map(rounded, kept)), where)


def inference_tape(graph: Graph, *, cuda: bool = False) -> Tape:
    """What one forward pass asks of its allocator; on ``cuda``, the workspaces of libraries too."""
    laid_out = layouts(graph)
    dies = deaths(graph, laid_out)
    tape, numbers = Tape(), {}
    for position, node in enumerate(graph.nodes):
        tape.begin(node.name)
        for output in node.outputs:
            if output and laid_out[output].storage == output:
                numbers[output] = tape.take(graph.tensors[output].bytes)
        tape.pass_through(working_blocks(graph, node, laid_out))
        if cuda:
            tape.pass_through(library_blocks(graph, node, laid_out))
        for storage in dies[position]:
            if storage in numbers:
                tape.give(numbers.pop(storage))
    for number in numbers.values():
        tape.give(number)
    return tape


def deaths(graph: Graph, laid_out: Mapping[str, Layout]) -> Mapping[int, list[str]]:
    """For every position the storages that nobody can touch any more after that node."""
    last = _last_use(graph)
    ends: dict[str, int] = {}
    for name, layout in laid_out.items():
        ends[layout.storage] = max(ends.get(layout.storage, -1), last.get(name, -1))
    dies: dict[int, list[str]] = defaultdict(list)
    for storage, position in ends.items():
        dies[position].append(storage)
    return dies


def working_blocks(graph: Graph, node: Node, laid_out: Mapping[str, Layout]) -> list[int]:
    """What a node needs beside its inputs and outputs while it runs: bodies, copies into another layout, indices."""
    blocks = [inference_peak(body).activation_bytes for body in node.bodies]
    if node.op in ("MatMul", "Gemm"):
        blocks += [_folding_copy(graph, node, name, laid_out) for name in node.inputs[:2] if name]
    elif node.op in ("MaxPool", "AdaptiveMaxPool") and len(node.outputs) == 1:
        blocks.append(graph.tensors[node.outputs[0]].elements * INDEX_BYTES)  # PyTorch always finds both
    elif node.op in ("LSTM", "GRU", "RNN") and node.inputs and node.outputs and node.outputs[0]:
        if node.integer("batch_first", 0):
            blocks.append(graph.tensors[node.inputs[0]].bytes)  # transposed
        if node.integer("layers", 1) > 1:
            blocks.append(graph.tensors[node.outputs[0]].bytes)  # what lies between layers
    return blocks


def _folding_copy(graph: Graph, node: Node, name: str, laid_out: Mapping[str, Layout]) -> int:
    """A batched product folds all leading axes into one; an operand whose layout forbids that is copied."""
    tensor, out = graph.tensors[name], graph.tensors[node.outputs[0]]
    shape, strides = tensor.shape, laid_out[name].strides
    if len(out.shape) < 3 or len(shape) < 3:
        return 0
    if node.op == "Gemm":
        return 0 if is_contiguous(shape, strides) else tensor.bytes
    if viewed_strides(shape, strides, (prod(shape[:-2]), *shape[-2:])) is not None:
        return 0
    return tensor.bytes


def _last_use(graph: Graph) -> dict[str, int]:
    """The position after which nobody can touch each activation any more."""
    last: dict[str, int] = {}
    end = len(graph.nodes)
    paths = {path: path.split(".") if path else [] for path in {node.module for node in graph.nodes}}
    modules = [paths[node.module] for node in graph.nodes]
    returns = _module_returns(modules)
    for name, readers in graph.consumers.items():
        tensor = graph.tensors[name]
        if tensor.kind not in ("input", "activation"):
            continue
        home = modules[graph.producers[name]] if name in graph.producers else []
        last[name] = max(_held_until(position, modules[position], home, returns) for position in readers)
        if len(readers) > 1 and graph.nodes[readers[-1]].op == "Concat":
            last[name] = max(last[name], _frame_end(readers[-1], modules[readers[-1]], home, returns, end))
    for name, position in graph.producers.items():
        last.setdefault(name, position)
    for name in (*graph.inputs, *graph.outputs):
        last[name] = end
    return last


def _held_until(position: int, reader: list[str], home: list[str], returns: list[list[int]]) -> int:
    """The end of the outermost module that was handed the tensor: the caller's frame holds it so long."""
    shared = _shared(reader, home)
    return position if shared >= len(reader) else returns[position][shared]


def _frame_end(position: int, reader: list[str], home: list[str], returns: list[list[int]], end: int) -> int:
    """A skip connection is a local variable of the frame around maker and reader, alive until that frame returns."""
    shared = _shared(reader, home)
    if len(home) == shared:
        return position  # made in that frame itself: its name may have been given to something else since
    return returns[position][shared - 1] if shared else end


def _shared(path: list[str], other: list[str]) -> int:
    """How many outer modules two paths have in common."""
    count = 0
    for a, b in zip(path, other):
        if a != b:
            break
        count += 1
    return count


def _module_returns(modules: list[list[str]]) -> list[list[int]]:
    """For each node and each module around it, outermost first, the last node of that unbroken stay in the module."""
    returns: list[list[int]] = [[] for _ in modules]
    path: list[str] = []
    ends: list[int] = []
    for position in range(len(modules) - 1, -1, -1):
        own = modules[position]
        if own is not path:
            shared = _shared(own, path)
            ends = ends[:shared] + [position] * (len(own) - shared)
            path = own
        returns[position] = ends
    return returns
