"""Graph: the peak memory of a training step, found by walking through it node by node.

Idea: the walk records every allocation and every free of the step on a `Tape`, in the order in which eager PyTorch
makes them. In the forward pass a tensor lives while a Python frame holds it (`foretell.graph.memory.liveness`) or while
a backward still needs it (`foretell.graph.memory.autograd`). In the backward pass a gradient lives from the node that
makes it to the node that consumes it. Where two paths meet, two gradients are alive at once until they are added. The
gradients of parameters stay until the optimizer has used them.

Source: the rules of the autograd engine (a gradient that has a single user is added to in place) and of the ``foreach``
optimizers, compared with ``torch.cuda.max_memory_allocated`` (``docs/lab/0010-memory.md``).

Limits: one loss, on the first output of the graph that has a gradient; one step without gradient accumulation, and
gradients that are set to None between steps. Gradient checkpointing and sharded optimizers are not modelled.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from foretell.frozen import dataclass
from foretell.graph.cost.training import STATE_BYTES, find_optimizer
from foretell.graph.ir.graph import Graph
from foretell.graph.ir.layout import layouts
from foretell.graph.ir.node import Node
from foretell.graph.ir.operators import lookup
from foretell.graph.memory.allocator import Tape, rounded
from foretell.graph.memory.autograd import (
    differentiates,
    extra_saved_blocks,
    gradient_passes,
    loss_output,
    needing_gradients,
    overwritten,
    reached_by_loss,
    saved_for_backward,
)
from foretell.graph.memory.liveness import Peak, deaths, live_peak, state_bytes, working_blocks
from foretell.graph.memory.operand_copies import einsum_between, kept_copies, operand_copies
from foretell.graph.memory.workspaces import backward_blocks, early_blocks, keeps_mask, library_blocks

# the modules that make ``logits`` in Transformers, whose models a measured step trains with a cross-entropy
_TEXT_HEADS = frozenset({"lm_head", "embed_out", "cls", "classifier", "score", "qa_outputs", "predictions"})


def training_peak(graph: Graph, optimizer: str = "sgd") -> Peak:
    """Return the peak memory of a step: parameters, gradients, optimizer states, and activations saved for backward."""
    return live_peak(graph, training_tape(graph, optimizer), optimizer_states(graph, optimizer))


def optimizer_states(graph: Graph, optimizer: str) -> list[int]:
    """The sizes of the optimizer's states, in the order in which it allocates them."""
    update = find_optimizer(optimizer)
    reached = reached_by_loss(graph, needing_gradients(graph))
    sizes = [t.elements * STATE_BYTES for n, t in graph.tensors.items() if t.kind == "parameter" and n in reached]
    return [size for size in sizes for _ in range(update.states)]


def training_tape(graph: Graph, optimizer: str, *, cuda: bool = False) -> Tape:
    """Record what one training step allocates and frees."""
    walk = _Walk(graph, cuda=cuda)
    walk.forward()
    walk.loss()
    walk.backward()
    walk.update(optimizer)
    return walk.tape


@dataclass(frozen=True)
class StepMemory:
    """The parts of a training step's memory, in bytes, so that each can be shared out among GPUs.

    ``live`` has (bytes besides gradients of parameters, bytes of these gradients) for every moment of forward and
    backward at which something was allocated; ``update`` is what the optimizer needs for a moment, with all gradients.
    """

    parameters: int
    others: int
    gradients: int
    states: int
    update: int
    live: tuple[tuple[int, int], ...]


def training_memory(graph: Graph, optimizer: str = "sgd", *, cuda: bool = False) -> StepMemory:
    """The memory of one training step by its parts. ``others`` are buffers, constants and inputs."""
    walk = _Walk(graph, cuda=cuda)
    walk.forward()
    walk.loss()
    walk.backward()
    owners = frozenset(walk.parameter_gradients.values())
    live, gradients, sizes, moments = 0, 0, list[int](), list[tuple[int, int]]()
    for event in walk.tape.events:
        if event >= 0:
            number = len(sizes)
            sizes.append(rounded(event))
            live, gradients = (live, gradients + sizes[-1]) if number in owners else (live + sizes[-1], gradients)
            moments.append((live, gradients))
        elif ~event in owners:
            gradients -= sizes[~event]
        else:
            live -= sizes[~event]
    parameters = sum(rounded(t.bytes) for t in graph.tensors.values() if t.kind == "parameter" and t.elements)
    inputs = sum(rounded(graph.tensors[name].bytes) for name in graph.inputs)
    updated = sum(graph.tensors[name].elements * STATE_BYTES for name in walk.parameter_gradients)
    return StepMemory(
        parameters=parameters,
        others=state_bytes(graph) - parameters + inputs,
        gradients=gradients,
        states=sum(map(rounded, optimizer_states(graph, optimizer))),
        update=updated * find_optimizer(optimizer).temporaries,
        live=tuple(moments),
    )


class _Walk:
    """Walks through a step and writes its tape; knows which blocks are allocated, and who still needs them."""

    def __init__(self, graph: Graph, *, cuda: bool) -> None:
        self.graph, self.tape, self.cuda = graph, Tape(), cuda
        self.laid_out, self.needing = layouts(graph), needing_gradients(graph)
        self.reached = reached_by_loss(graph, self.needing)
        self.size = {n: t.bytes for n, t in graph.tensors.items()}
        self.saved = [self._storages(node) if self._has_backward(node) else frozenset[str]() for node in graph.nodes]
        self.extra: list[list[int]] = []  # for each node the blocks that it keeps besides tensors
        self.holders: dict[str, int] = defaultdict(int)  # storage → number of backwards that still need it
        for storages in self.saved:
            for storage in storages:
                self.holders[storage] += 1
        self.numbers: dict[str, int] = {}  # storage → its block
        self.gradients: dict[str, int] = {}  # tensor → the block that holds its gradient
        self.users: dict[int, int] = {}  # block of a gradient → number of gradients that lie in it
        self.reordered: set[int] = set()  # blocks of gradients whose axes lie in another order than row-major
        self.parameter_gradients: dict[str, int] = {}  # parameter → the block that holds its gradient

    def _has_backward(self, node: Node) -> bool:
        return not self.reached.isdisjoint(node.outputs)

    def _storages(self, node: Node) -> frozenset[str]:
        """The storages that a node keeps alive until its backward has run."""
        saved = saved_for_backward(self.graph, node, self.needing)
        if saved and keeps_mask(self.graph, node):
            saved += node.inputs[3:4]
        copies = operand_copies(self.graph, node, self.laid_out)  # then the copy is saved in place of the operand
        storages = (self.laid_out[n].storage for n in saved if n not in copies)
        return frozenset(s for s in storages if self.graph.tensors[s].kind == "activation")

    def forward(self) -> None:
        """Allocate outputs and what autograd keeps besides them; free what neither a frame nor a backward needs."""
        # _drop keeps a storage that dies here if a backward still needs it; backward drops it later
        dies, tape = self._deaths(), self.tape
        for position, node in enumerate(self.graph.nodes):
            tape.begin(node.name)
            for output in node.outputs:
                if output and self.laid_out[output].storage == output:
                    self.numbers[output] = tape.allocate(self.size[output])
            kept = self._extra(node)
            self.extra.append([tape.allocate(size) for size in kept])
            self._work(node, kept)
            for storage in dies[position]:
                self._drop(storage)

    def _extra(self, node: Node) -> list[int]:
        """The sizes that a node keeps besides tensors: indices, masks, copies of operands."""
        if not self._has_backward(node):
            return []
        return [
            *extra_saved_blocks(self.graph, node, self.needing),
            *kept_copies(self.graph, node, self.laid_out, self.needing),
            *einsum_between(self.graph, node, self.laid_out),
        ]

    def _deaths(self) -> Mapping[int, list[str]]:
        """What dies after each node in the forward pass; what a node saves for nothing dies with its outputs."""
        ends = {s: position for position, storages in deaths(self.graph).items() for s in storages}
        until: dict[str, int] = {}  # tensor → when the last node goes that was computed from it and saves something
        for node in reversed(self.graph.nodes):
            if self._has_backward(node) or not differentiates(node, self.needing):
                continue
            outputs = [o for o in node.outputs if o]
            end = max(max(ends[s], until.get(o, ends[s])) for o in outputs for s in [self.laid_out[o].storage])
            for name in node.inputs:
                until[name] = max(until.get(name, end), end)
            for storage in self._storages(node):
                ends[storage] = max(ends[storage], end)
        dies: dict[int, list[str]] = defaultdict(list)
        for storage, position in ends.items():
            dies[position].append(storage)
        return dies

    def _work(self, node: Node, kept: Sequence[int] = (), more: Sequence[int] = ()) -> None:
        """Allocate what a node needs while it runs, and free it; what backward keeps of it is allocated already."""
        blocks = working_blocks(self.graph, node, self.laid_out)
        for size in kept:
            if size in blocks:
                blocks.remove(size)
        self.tape.allocate_briefly(blocks)
        if self.cuda:
            self.tape.allocate_briefly([*library_blocks(self.graph, node, self.laid_out), *more])

    def _drop(self, storage: str) -> None:
        """Free a storage, unless a backward still needs it."""
        if not self.holders[storage] and storage in self.numbers:
            self.tape.free(self.numbers.pop(storage))

    def loss(self) -> None:
        """A cross-entropy on scores, a mean square on anything else; both work in fp32, and outputs go with them."""
        name = loss_output(self.graph, self.needing)
        if not name:
            return
        self.tape.begin("loss")
        gradient = self._cross_entropy(name) if self._has_scores(name) else self._mean_square(name)
        # the gradient is cast back to the dtype of the output
        if self.graph.tensors[name].dtype != "fp32":
            self._release(gradient)
            gradient = self._allocate(self.size[name])
        self._accumulate(name, gradient)

    def _has_scores(self, name: str) -> bool:
        """Whether a step takes an output for scores of classes: a row for each item, or the ``logits`` of tokens."""
        rank = len(self.graph.tensors[name].shape)
        head = self.graph.nodes[self.graph.producers[name]].module if name in self.graph.producers else ""
        return rank == 2 or (rank == 3 and not _TEXT_HEADS.isdisjoint(head.split(".")))

    def _cross_entropy(self, name: str) -> int:
        """It saves logarithms of the size of its input; returns the block of the gradient."""
        tape, fp32_bytes = self.tape, self.graph.tensors[name].elements * STATE_BYTES
        saved = tape.allocate(fp32_bytes)
        if self.graph.tensors[name].dtype != "fp32":
            tape.allocate_briefly([fp32_bytes])
        self._drop_outputs()
        temporary = tape.allocate(fp32_bytes)
        gradient = self._allocate(fp32_bytes)
        tape.free(temporary)
        tape.free(saved)
        return gradient

    def _mean_square(self, name: str) -> int:
        """It saves its input in fp32, and multiplies four tensors of its size in backward; returns the gradient."""
        tape, fp32_bytes = self.tape, self.graph.tensors[name].elements * STATE_BYTES
        is_full = self.graph.tensors[name].dtype == "fp32"
        saved = None if is_full else tape.allocate(fp32_bytes)
        tape.allocate_briefly([fp32_bytes])
        self._drop_outputs(self.laid_out[name].storage if is_full else "")
        # 2 · x · (1 / n): the mean's gradient, the power's two factors, their product
        factors = [tape.allocate(fp32_bytes) for _ in range(3)]
        gradient = self._allocate(fp32_bytes)
        for number in factors:
            tape.free(number)
        if saved is not None:
            tape.free(saved)
        self._drop_outputs()
        return gradient

    def _drop_outputs(self, kept: str = "") -> None:
        """Free the outputs, whose names are gone when backward begins, but for the one that the loss has saved."""
        # what was saved for an output without a loss stays until the end of the step, as measured (wild:atoms)
        for storage in dict.fromkeys(self.laid_out[output].storage for output in self.graph.outputs):
            if storage != kept:
                self._drop(storage)

    def backward(self) -> None:
        """Visit the nodes in reverse: make the gradients of their inputs, then free what they had saved."""
        tape = self.tape
        for position in range(len(self.graph.nodes) - 1, -1, -1):
            node = self.graph.nodes[position]
            tape.begin(f"{node.name} (backward)")
            if (base := overwritten(self.graph, node)) in self.gradients:
                self._split_gradient(node, base)
            incoming = [self.gradients.pop(o) for o in node.outputs if o in self.gradients]
            if incoming and differentiates(node, self.needing):
                self._differentiate(node, incoming)
            for gradient in incoming:
                self._release(gradient)
            for number in self.extra[position]:
                tape.free(number)
            for storage in self.saved[position]:
                self.holders[storage] -= 1
                self._drop(storage)
        # what is left was freed by no backward, such as an output that needs no gradient
        for number in dict.fromkeys((*self.gradients.values(), *self.numbers.values())):
            tape.free(number)

    def update(self, optimizer: str) -> None:
        """All temporaries of an update are alive at once: a foreach optimizer works on lists of all parameters."""
        self.tape.begin(f"{optimizer} update")
        sizes = [self.graph.tensors[name].elements * STATE_BYTES for name in self.parameter_gradients]
        self.tape.allocate_briefly(sizes * find_optimizer(optimizer).temporaries)
        for gradient in self.parameter_gradients.values():
            self.tape.free(gradient)

    def _differentiate(self, node: Node, incoming: list[int]) -> None:
        """Make the gradients of a node's inputs while the gradients of its outputs are still alive."""
        self.tape.allocate_briefly(early_blocks(self.graph, node))
        made: list[tuple[str, int]] = []
        unreduced: list[tuple[str, int]] = []  # gradients of broadcast operands, before they are summed
        broadcasts = lookup(node.op, node.domain).kind == "elementwise" and node.op not in ("Add", "Sub", "Sum", "Mean")
        largest = max(self.size[o] for o in node.outputs if o)
        for name in dict.fromkeys(i for i in node.inputs if i in self.reached):
            is_parameter = self.graph.tensors[name].kind == "parameter"
            # an addition hands the very same gradient to both operands: one block, one more user
            if not is_parameter and len(incoming) == 1 and gradient_passes(self.graph, node, name, self.laid_out):
                self.users[incoming[0]] += 1
                made.append((name, incoming[0]))
            elif (
                broadcasts
                and self.size[name] < largest
                and self.graph.tensors[name].elements < self.graph.tensors[node.outputs[0]].elements
            ):
                unreduced.append((name, self._allocate(largest)))  # as large as the output until it is summed
            else:
                made.append((name, self._allocate(self.size[name])))
        self._reorder(node, incoming, made)
        self._work(node, self._extra(node), self._backward_blocks(node, incoming))
        for name, large in unreduced:
            small = self._allocate(self.size[name])
            self._release(large)
            made.append((name, small))
        for name, gradient in made:
            self._accumulate(name, gradient)

    def _reorder(self, node: Node, incoming: list[int], made: list[tuple[str, int]]) -> None:
        """Note which gradients are not row-major: an operand that ``einsum`` copied gets its gradient in that order."""
        copied = operand_copies(self.graph, node, self.laid_out) if node.op == "Einsum" else {}
        follows = lookup(node.op, node.domain).kind == "elementwise" and not self.reordered.isdisjoint(incoming)
        self.reordered.update(block for name, block in made if name in copied or follows)

    def _backward_blocks(self, node: Node, incoming: list[int]) -> list[int]:
        """The extra blocks of a node's backward; a softmax copies a gradient that is not row-major."""
        copies = [self.size[node.outputs[0]]] if node.op == "Softmax" else []
        extra = backward_blocks(self.graph, node, self.needing)
        return extra if self.reordered.isdisjoint(incoming) else [*extra, *copies]

    def _split_gradient(self, node: Node, base: str) -> None:
        """A write into a part of a tensor: backward copies the gradient of the whole, and takes the part out of it."""
        whole = self._allocate(self.size[base])
        self._release(self.gradients.pop(base))
        self.gradients[base] = whole
        self.gradients[node.outputs[0]] = self._allocate(self.size[node.outputs[0]])

    def _accumulate(self, name: str, gradient: int) -> None:
        """Add a gradient to what other paths have brought to the same tensor."""
        if self.graph.tensors[name].kind == "parameter":
            if name in self.parameter_gradients:
                self._release(gradient)
            else:
                self.parameter_gradients[name] = gradient
            return
        old = self.gradients.get(name)
        if old is None:
            self.gradients[name] = gradient
            return
        if self.users[old] > 1:  # another path still reads the block: the sum needs one of its own
            self.gradients[name] = self._allocate(self.size[name])
            self._release(old)
        self._release(gradient)

    def _allocate(self, size: int) -> int:
        number = self.tape.allocate(size)
        self.users[number] = 1
        return number

    def _release(self, gradient: int) -> None:
        self.users[gradient] -= 1
        if not self.users[gradient]:
            self.tape.free(gradient)
