"""Graph: a model as a validated graph of operators in the order in which they can run. It holds no weights' values."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, fields, replace
from functools import cached_property
from operator import attrgetter, is_
from typing import Any

from foretell.errors import GraphError, InputError
from foretell.frozen import dataclass
from foretell.graph.ir.node import Node
from foretell.graph.ir.tensor import DTYPE_BITS, FLOAT_DTYPES, ClassedTensors, Tensor, TensorClasses, TensorType


@dataclass(frozen=True)
class Graph:
    """The nodes of a model in topological order, and every tensor that they touch.

    Use `Graph.build`, which sorts and validates. Weights that the model owns but no node reads are among the tensors,
    too: they take memory and count as parameters.

    ``held`` are the tensors that the program still names after their last reader, each with the node after which it
    lets go of them; a tensor that is not listed is freed after its last reader. It is None where no program was watched
    (an ONNX file): then lifetimes are guessed from module paths. ``fixed`` are the tensors whose dtype the program sets
    by itself (``x.float()``), so that they keep it when the model is cast. The hash depends on neither.
    """

    name: str
    nodes: tuple[Node, ...]
    tensors: Mapping[str, Tensor]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    batch_size: int = 1
    warnings: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    held: Mapping[str, str] | None = None
    fixed: frozenset[str] = frozenset()

    @classmethod
    def build(
        cls,
        name: str,
        nodes: Iterable[Node],
        tensors: Mapping[str, Tensor],
        inputs: Iterable[str],
        outputs: Iterable[str],
        *,
        batch_size: int = 1,
        warnings: Iterable[str] = (),
        metadata: Mapping[str, str] | None = None,
        held: Mapping[str, str] | None = None,
    ) -> Graph:
        """Sort the nodes topologically, validate, and return the graph."""
        ordered = sort_nodes(tuple(nodes))
        graph = cls(
            name,
            ordered,
            dict(tensors),
            tuple(inputs),
            tuple(outputs),
            batch_size,
            tuple(warnings),
            dict(metadata or {}),
            held,
        )
        graph.validate()
        return graph

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone: what was computed from them is computed again where a copy goes."""
        return {name: value for name, value in vars(self).items() if name in _FIELDS}

    def validate(self) -> None:
        """Raise `GraphError` if the graph is inconsistent: unknown or duplicate tensors, a bad order, a bad shape."""
        for key, tensor in self.tensors.items():
            if key != tensor.name:
                raise GraphError(f"Tensor {tensor.name!r} is stored under the name {key!r}.")
            tensor.validate()
        if self.batch_size < 1:
            raise GraphError(f"The batch size is {self.batch_size}; it must be 1 or more.")
        # everything but an activation exists before the first node runs
        ready = {t.name for t in self.tensors.values() if t.kind != "activation"}
        for node in self.nodes:
            for name in node.inputs:
                if name and name not in self.tensors:
                    raise GraphError(
                        f"Node {node.name!r} ({node.op}) reads the tensor {name!r}, whose shape is unknown."
                    )
                if name and name not in ready:
                    raise GraphError(f"Node {node.name!r} ({node.op}) reads {name!r}, which no earlier node makes.")
            for name in node.outputs:
                if name and name not in self.tensors:
                    raise GraphError(
                        f"Node {node.name!r} ({node.op}) writes the tensor {name!r}, whose shape is unknown."
                    )
                if name in ready:
                    raise GraphError(
                        f"Tensor {name!r} is made twice, the second time by node {node.name!r} ({node.op})."
                    )
                if name:
                    ready.add(name)
        for name in (*self.inputs, *self.outputs):
            if name not in ready:
                raise GraphError(f"The graph names {name!r} as an input or output, but nothing makes it.")

    @cached_property
    def structure(self) -> dict[Any, Any]:
        """What others have found out about the edges between nodes, whatever the sizes of tensors and the attributes.

        Graphs with the same edges share it: the same one at another batch size or dtype, and many of a search space.
        """
        return _shared_structure(self)

    @cached_property
    def signed(self) -> dict[Any, Any]:
        """What others have found out about its operators and attributes. The graph at other sizes shares it."""
        return {}

    @cached_property
    def classes(self) -> TensorClasses:
        """The classes of its tensors: those of a class differ only in their names."""
        tensors = self.tensors
        if isinstance(tensors, ClassedTensors) and tensors.classes.fixed == self.fixed:
            return tensors.classes
        return TensorClasses.of(tensors, self.fixed)

    def forget(self) -> None:
        """Let go of everything that was computed from the graph, so that nothing of it waits for a search of cycles."""
        for name in [name for name in vars(self) if name not in _FIELDS]:
            del vars(self)[name]

    def _resized(self, classes: TensorClasses, nodes: tuple[Node, ...], **changes: int) -> Graph:
        """The same model with other sizes of tensors; what does not depend on them is kept."""
        graph = replace(self, tensors=ClassedTensors(classes), nodes=nodes, **changes)  # type: ignore[arg-type]
        if nodes is self.nodes:
            vars(graph)["structure"] = self.structure
            vars(graph)["signed"] = self.signed
        return graph

    @cached_property
    def consumers(self) -> Mapping[str, tuple[int, ...]]:
        """The positions of the nodes that read each tensor."""
        if "consumers" not in self.structure:
            readers: dict[str, list[int]] = {}
            for position, node in enumerate(self.nodes):
                for name in node.inputs:
                    known = readers.get(name)
                    if known is None:
                        readers[name] = [position]
                    elif known[-1] != position:  # an operand that occurs twice is read once
                        known.append(position)
            readers.pop("", None)
            self.structure["consumers"] = {name: tuple(positions) for name, positions in readers.items()}
        return self.structure["consumers"]  # type: ignore[no-any-return]

    @cached_property
    def producers(self) -> Mapping[str, int]:
        """The position of the node that makes each activation."""
        if "producers" not in self.structure:
            self.structure["producers"] = {
                name: position for position, node in enumerate(self.nodes) for name in node.outputs if name
            }
        return self.structure["producers"]  # type: ignore[no-any-return]

    @cached_property
    def parameter_count(self) -> int:
        """The number of trainable elements. Shared weights count once; the bodies of If, Loop and Scan count, too."""
        outer = sum(t.elements for t in self.tensors.values() if t.kind == "parameter")
        return outer + sum(body.parameter_count for node in self.nodes for body in node.bodies)

    @cached_property
    def state_bytes(self) -> int:
        """Bytes of everything that stays in memory between runs: parameters, buffers, constants."""
        outer = sum(t.bytes for t in self.tensors.values() if t.kind in ("parameter", "buffer", "constant"))
        return outer + sum(body.state_bytes for node in self.nodes for body in node.bodies)

    @cached_property
    def operator_counts(self) -> Mapping[str, int]:
        """How often each operator occurs, most frequent first."""
        return dict(Counter(node.op for node in self.nodes).most_common())

    @cached_property
    def hash(self) -> str:
        """A digest of structure and shapes. Names, weights and the order of independent nodes do not change it."""
        # every tensor gets the digest of how it is computed, so that equal computations give equal digests
        known = {t.name: _digest(t.kind, t.shape, t.dtype) for t in self.tensors.values() if t.kind != "activation"}
        for position, name in enumerate(self.inputs):
            known[name] = _digest("input", position, self.tensors[name].shape, self.tensors[name].dtype)
        node_digests = []
        for node in self.nodes:
            output_types = [(self.tensors[o].shape, self.tensors[o].dtype) if o else () for o in node.outputs]
            attributes = sorted((k, _plain(v)) for k, v in node.attributes.items())
            digest = _digest(
                node.domain,
                node.op,
                attributes,
                [known.get(i, "") for i in node.inputs],
                output_types,
                [b.hash for b in node.bodies],
            )
            node_digests.append(digest)
            for index, name in enumerate(node.outputs):
                if name:
                    known[name] = f"{digest}:{index}"
        return _digest(sorted(node_digests), [known[o] for o in self.outputs], self.parameter_count)

    def with_batch(self, batch_size: int) -> Graph:
        """Return the same model at another batch size: every batch axis is scaled."""
        if batch_size < 1:
            raise InputError(f"The batch size is {batch_size}; it must be 1 or more.")
        if batch_size == self.batch_size:
            return self
        classes = self.classes.with_types(
            [t if t.batch_axis is None else self._scaled(t, batch_size) for t in self.classes.types]
        )
        nodes = self._with_bodies(lambda body: body.with_batch(batch_size))
        graph = self._resized(classes, nodes, batch_size=batch_size)
        if self._parameter_dtype:
            vars(graph)["_parameter_dtype"] = self._parameter_dtype  # parameters do not depend on the batch
        return graph

    def _with_bodies(self, change: Callable[[Graph], Graph]) -> tuple[Node, ...]:
        """The nodes with their bodies changed; the same tuple where no node has any."""
        if not any(node.bodies for node in self.nodes):
            return self.nodes
        return tuple(replace(n, bodies=tuple(map(change, n.bodies))) if n.bodies else n for n in self.nodes)

    def _scaled(self, own: TensorType, batch_size: int) -> TensorType:
        """The type of a tensor at another batch size."""
        shape, dtype, kind, axis, is_fixed = own
        assert axis is not None
        # the axis may hold a multiple of the batch, such as batch × windows
        per_item, rest = divmod(shape[axis], self.batch_size)
        if rest:
            number = self.classes.types.index(own)
            name = next(name for name, member in self.classes.numbers.items() if member == number)
            raise InputError(
                f"Tensor {name!r} of shape {shape} does not divide by the batch size {self.batch_size}: "
                "convert the model again at the batch size that you need."
            )
        scaled = (*shape[:axis], per_item * batch_size, *shape[axis + 1 :])
        return TensorType(scaled, dtype, kind, axis, is_fixed)

    def at(self, batch_size: int, dtype: str | None = None) -> Graph:
        """Return the model at a batch size and, where one is given, a dtype. A cast graph is kept for the next time."""
        if dtype in (None, self._parameter_dtype):
            return self.with_batch(batch_size)
        if not self._parameter_dtype:  # then the dtype is that of most activations, and may depend on the batch
            return self.with_batch(batch_size).with_dtype(dtype)
        casts: dict[str, Graph] = vars(self).setdefault("_casts", {})
        if dtype not in casts:
            casts[dtype] = self.with_dtype(dtype)
        return casts[dtype].with_batch(batch_size)

    def with_dtype(self, dtype: str) -> Graph:
        """Return the model as ``model.to(dtype)`` casts it: every tensor of the model's own dtype gets the new one."""
        if dtype not in FLOAT_DTYPES:
            raise InputError(f"Unknown dtype {dtype!r}. Choose from: {', '.join(sorted(FLOAT_DTYPES))}.")
        model_dtype = self.dtype
        if model_dtype == dtype:
            return self
        classes = self.classes.with_types(
            [
                TensorType(t.shape, dtype, t.kind, t.batch_axis) if t.dtype == model_dtype and not t.is_fixed else t
                for t in self.classes.types
            ]
        )
        nodes = self._with_bodies(lambda body: body.with_dtype(dtype))
        if self.fixed:
            tensors = ClassedTensors(classes)
            recast = tuple(_recast(node, self.tensors, tensors) for node in nodes)
            nodes = nodes if all(map(is_, recast, nodes)) else recast
        return self._resized(classes, nodes)

    @cached_property
    def dtype(self) -> str:
        """The floating-point dtype of most of its parameters, by bytes; of its activations if it has no parameters."""
        return self._parameter_dtype or self._largest_dtype("input", "activation", "buffer", "constant") or "fp32"

    @cached_property
    def _parameter_dtype(self) -> str:
        return self._largest_dtype("parameter")

    def _largest_dtype(self, *kinds: str) -> str:
        """The floating-point dtype of most tensors of some kinds; empty where there is none."""
        # by bytes: a model with fp16 matrices and a few fp32 norms is an fp16 model
        # a quantised model's own dtype is that of what is not quantised
        types = [None if own.is_fixed and own.dtype in ("fp8", "fp4") else own for own in self.classes.types]
        dtypes = {own.dtype for own in types if own and own.kind in kinds and own.dtype in FLOAT_DTYPES}
        if len(dtypes) < 2:
            return next(iter(dtypes), "")
        weight: Counter[str] = Counter()
        for own, count in zip(types, self.classes.counts(), strict=True):
            if own and own.kind in kinds and own.dtype in FLOAT_DTYPES:
                weight[own.dtype] += count * own.elements * DTYPE_BITS[own.dtype]
        return weight.most_common(1)[0][0] if weight else ""


_FIELDS = frozenset(field.name for field in fields(Graph))
_MAX_SHARED_NODES = 50_000  # of all structures that are kept, about a kilobyte each
_edges_of = attrgetter("name", "op", "inputs", "outputs", "domain", "module", "origin", "origin_op")
_bodies_of = attrgetter("bodies")
_structures: dict[tuple[object, ...], dict[Any, Any]] = {}
_structure_nodes: dict[tuple[object, ...], int] = {}


def _shared_structure(graph: Graph) -> dict[Any, Any]:
    """The structure of all graphs that have these edges: names, operators, modules and kinds of tensors are equal."""
    nodes, held = graph.nodes, graph.held
    if len(nodes) > _MAX_SHARED_NODES // 16 or any(map(_bodies_of, nodes)):
        return {}
    classes = graph.classes
    kinds = [own.kind for own in classes.types]
    key = (
        tuple(map(_edges_of, nodes)),
        tuple(classes.numbers),
        tuple([kinds[number] for number in classes.numbers.values()]),
        graph.inputs,
        graph.outputs,
        None if held is None else tuple(held.items()),
    )
    found = _structures.get(key)
    if found is None:
        if sum(_structure_nodes.values()) + len(nodes) > _MAX_SHARED_NODES:
            _structures.clear()
            _structure_nodes.clear()
        _structure_nodes[key] = len(nodes)
        found = _structures.setdefault(key, {})
    return found


def _recast(node: Node, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> Node:
    """A cast whose operand got the dtype of its result does nothing any more; one that did nothing may have to work."""
    if node.op not in ("Identity", "Cast") or not node.inputs or not node.inputs[0] or not node.outputs[0]:
        return node
    source, result = node.inputs[0], node.outputs[0]
    if not (after[source].is_float and after[result].is_float):
        return node
    was_cast, is_cast = before[source].dtype != before[result].dtype, after[source].dtype != after[result].dtype
    attributes = {name: value for name, value in node.attributes.items() if name != "to"}
    if is_cast:
        return replace(node, op="Cast", attributes=attributes | {"to": after[result].dtype})
    return replace(node, op="Identity", attributes=attributes) if was_cast else node


def sort_nodes(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Sort nodes topologically (Kahn's algorithm). Nodes that are in order already keep their order."""
    producer = {name: i for i, node in enumerate(nodes) for name in node.outputs if name}
    inputs_left = [0] * len(nodes)
    successors: dict[int, list[int]] = defaultdict(list)
    in_order = True
    for i, node in enumerate(nodes):
        for source in {producer[name] for name in node.inputs if name in producer}:
            inputs_left[i] += 1
            successors[source].append(i)
            in_order = in_order and source < i
    if in_order:
        return nodes
    # a stack, filled backwards: nodes come out as close to their old order as the edges allow
    ready = [i for i in range(len(nodes) - 1, -1, -1) if inputs_left[i] == 0]
    ordered = []
    while ready:
        i = ready.pop()
        ordered.append(nodes[i])
        for successor in reversed(successors[i]):
            inputs_left[successor] -= 1
            if inputs_left[successor] == 0:
                ready.append(successor)
    if len(ordered) < len(nodes):
        stuck = next(node for i, node in enumerate(nodes) if inputs_left[i])
        raise GraphError(f"The graph has a cycle through node {stuck.name!r} ({stuck.op}).")
    return tuple(ordered)


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _digest(*parts: object) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()
