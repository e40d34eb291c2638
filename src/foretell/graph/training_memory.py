"""graph: peak memory of a training step, by walking it forward and back.

Forward, a tensor lives while a frame of the program holds it or backward will need it. Backward, a gradient lives from
the node that makes it to the node that uses it up; where paths join, two are alive at once. Those of parameters stay.
"""

from collections import defaultdict

from foretell.graph.autograd import (
    differentiates,
    extra_saved_bytes,
    gradient_passes,
    needing_gradients,
    saved_for_backward,
)
from foretell.graph.graph import Graph
from foretell.graph.layout import layouts
from foretell.graph.memory import Peak, deaths, rounded, state_bytes, working_bytes
from foretell.graph.node import Node
from foretell.graph.ops import lookup
from foretell.graph.training import STATE_BYTES, find_optimizer


def training_peak(graph: Graph, optimizer: str = "sgd") -> Peak:
    """Peak memory of a step: parameters, gradients, optimizer states, activations while backward needs them."""
    update = find_optimizer(optimizer)
    parameters = sum(rounded(t.elements * STATE_BYTES) for t in graph.tensors.values() if t.kind == "parameter")
    walk = _Walk(graph, state_bytes(graph) + parameters * update.states)
    walk.forward()
    walk.backward()
    walk.note(walk.resident + parameters * (1 + update.temporaries), f"{optimizer} update")
    return Peak(walk.peak, walk.state, walk.where)


class _Walk:
    """The memory in use, node by node."""

    def __init__(self, graph: Graph, state: int) -> None:
        self.graph, self.state = graph, state
        self.laid_out, self.needing = layouts(graph), needing_gradients(graph)
        self.size = {n: rounded(t.bytes) for n, t in graph.tensors.items()}
        self.resident = state + sum(self.size[n] for n in graph.inputs)
        self.live = self.peak = self.resident
        self.where = ""
        self.saved = [self._storages(node) for node in graph.nodes]
        self.extra = [extra_saved_bytes(graph, node, self.needing) for node in graph.nodes]
        self.holders: dict[str, int] = defaultdict(int)  # how many backwards still need a storage
        for storages in self.saved:
            for storage in storages:
                self.holders[storage] += 1
        self.gradients: dict[str, int] = {}  # of a tensor: the number of the storage that holds its gradient
        self.users: dict[int, int] = {}  # of such a storage: how many gradients lie in it
        self.bytes: dict[int, int] = {}
        self.arrived: set[str] = set()  # parameters that have a gradient

    def note(self, live: int, where: str) -> None:
        if live > self.peak:
            self.peak, self.where = live, where

    def _storages(self, node: Node) -> frozenset[str]:
        named = (self.laid_out[n].storage for n in saved_for_backward(self.graph, node, self.needing))
        return frozenset(s for s in named if self.graph.tensors[s].kind == "activation")

    def forward(self) -> None:
        dies = deaths(self.graph, self.laid_out)
        for position, node in enumerate(self.graph.nodes):
            self.live += (
                sum(self.size[o] for o in node.outputs if o and self.laid_out[o].storage == o) + self.extra[position]
            )
            self.note(self.live + working_bytes(self.graph, node, self.laid_out), node.name)
            self.live -= sum(
                self.size[s]
                for s in dies[position]
                if self.graph.tensors[s].kind == "activation" and not self.holders[s]
            )

    def backward(self) -> None:
        for name in self.graph.outputs:
            if name in self.needing:
                self.live += self.size[name]  # what the loss saves: probabilities, or the difference
                self._arrive(name, self._allocate(self.size[name]))
        self.note(self.live, "loss")
        for position in range(len(self.graph.nodes) - 1, -1, -1):
            node = self.graph.nodes[position]
            incoming = [self.gradients.pop(o) for o in node.outputs if o in self.gradients]
            if incoming and differentiates(node, self.needing):
                self._differentiate(node, incoming)
            for gradient in incoming:
                self._release(gradient)
            if differentiates(node, self.needing):
                self.live -= self.extra[position]
                for storage in self.saved[position]:
                    self.holders[storage] -= 1
                    if not self.holders[storage]:
                        self.live -= self.size[storage]

    def _differentiate(self, node: Node, incoming: list[int]) -> None:
        """Make the gradients of a node's inputs while the gradients of its outputs are still there."""
        made: list[tuple[str, int]] = []
        shrinking: list[tuple[str, int]] = []
        broadcasts = lookup(node.op, node.domain).kind == "elementwise" and node.op not in ("Add", "Sub", "Sum", "Mean")
        largest = max(self.size[o] for o in node.outputs if o)
        for name in dict.fromkeys(i for i in node.inputs if i in self.needing):
            is_parameter = self.graph.tensors[name].kind == "parameter"
            if not is_parameter and len(incoming) == 1 and gradient_passes(self.graph, node, name, self.laid_out):
                self.users[incoming[0]] += 1
                made.append((name, incoming[0]))
            elif (
                broadcasts
                and self.size[name] < largest
                and self.graph.tensors[name].elements < self.graph.tensors[node.outputs[0]].elements
            ):
                shrinking.append((name, self._allocate(largest)))  # as large as the output until it is summed
            else:
                made.append((name, self._allocate(self.size[name])))
        self.note(self.live + working_bytes(self.graph, node, self.laid_out), f"{node.name} (backward)")
        for name, large in shrinking:
            small = self._allocate(self.size[name])
            self._release(large)
            made.append((name, small))
        for name, gradient in made:
            self._arrive(name, gradient)

    def _arrive(self, name: str, gradient: int) -> None:
        """Add a gradient to what other paths have brought."""
        if self.graph.tensors[name].kind == "parameter":
            if name in self.arrived:
                self._release(gradient)
            self.arrived.add(name)
            return
        old = self.gradients.get(name)
        if old is None:
            self.gradients[name] = gradient
            return
        if self.users[old] > 1:  # another path still reads it: the sum needs a place of its own
            self.gradients[name] = self._allocate(self.size[name])
            self.note(self.live, f"sum of gradients of {name}")
            self._release(old)
        self._release(gradient)

    def _allocate(self, size: int) -> int:
        number = len(self.bytes)
        self.bytes[number], self.users[number] = size, 1
        self.live += size
        return number

    def _release(self, gradient: int) -> None:
        self.users[gradient] -= 1
        if not self.users[gradient]:
            self.live -= self.bytes[gradient]
