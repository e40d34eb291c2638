"""graph: peak memory from the life of every tensor: made by one node, dead after the last that may still touch it."""

from collections import defaultdict
from dataclasses import dataclass

from foretell.graph.graph import Graph
from foretell.graph.layout import layouts

BLOCK_BYTES = 512  # the caching allocator rounds every tensor up to this


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


def rounded(size_bytes: int) -> int:
    """A size as the allocator hands it out."""
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


def state_bytes(graph: Graph) -> int:
    """Parameters, buffers and constants, as allocated."""
    own = sum(rounded(t.bytes) for t in graph.tensors.values() if t.kind in ("parameter", "buffer", "constant"))
    return own + sum(state_bytes(body) for node in graph.nodes for body in node.bodies)


def inference_peak(graph: Graph) -> Peak:
    """Peak memory of one forward pass.

    A tensor handed to a module is held by the caller's frame until that module returns, as PyTorch's eager mode holds it;
    where nodes carry no module path it dies after its last reader. Views keep their storage alive.
    """
    laid_out = layouts(graph)
    last = _last_use(graph)
    dies: dict[int, list[str]] = defaultdict(list)
    ends: dict[str, int] = {}
    for name, layout in laid_out.items():
        ends[layout.storage] = max(ends.get(layout.storage, -1), last.get(name, -1))
    for storage, position in ends.items():
        dies[position].append(storage)
    size = {n: rounded(t.bytes) for n, t in graph.tensors.items() if t.kind in ("input", "activation")}
    state = state_bytes(graph)
    live = state + sum(size[n] for n in graph.inputs)
    peak, where = live, ""
    for position, node in enumerate(graph.nodes):
        made = [o for o in node.outputs if o and laid_out[o].storage == o]
        live += sum(size[o] for o in made)
        inner = max((inference_peak(b).activation_bytes for b in node.bodies), default=0)
        if live + inner > peak:
            peak, where = live + inner, node.name
        live -= sum(size.get(s, 0) for s in dies[position] if s in size)
    return Peak(peak, state, where)


def _last_use(graph: Graph) -> dict[str, int]:
    """The position after which nobody can touch each activation any more."""
    last: dict[str, int] = {}
    end = len(graph.nodes)
    modules = [node.module.split(".") if node.module else [] for node in graph.nodes]
    returns = _module_returns(modules)
    for name, readers in graph.consumers.items():
        tensor = graph.tensors[name]
        if tensor.kind not in ("input", "activation"):
            continue
        home = modules[graph.producers[name]] if name in graph.producers else []
        last[name] = max(_held_until(position, modules[position], home, returns) for position in readers)
    for name, position in graph.producers.items():
        last.setdefault(name, position)
    for name in (*graph.inputs, *graph.outputs):
        last[name] = end
    return last


def _held_until(position: int, reader: list[str], home: list[str], returns: dict[tuple[str, int], int]) -> int:
    """The end of the outermost module that was handed the tensor: the caller's frame holds it so long."""
    shared = 0
    while shared < min(len(reader), len(home)) and reader[shared] == home[shared]:
        shared += 1
    if shared >= len(reader):
        return position
    return returns[".".join(reader[: shared + 1]), position]


def _module_returns(modules: list[list[str]]) -> dict[tuple[str, int], int]:
    """For each node and each module around it, the last node of that unbroken stay in the module."""
    returns: dict[tuple[str, int], int] = {}
    open_since: dict[str, int] = {}
    for position in range(len(modules) - 1, -1, -1):
        inside = {".".join(modules[position][: n + 1]) for n in range(len(modules[position]))}
        open_since = {path: open_since.get(path, position) for path in inside}
        for path in inside:
            returns[path, position] = open_since[path]
    return returns
