"""Frontends: turns a program of ATen calls into a graph. The calls come from ``torch.export`` or from a .pt2 file.

This module does not import torch. `foretell.frontends.torch.aten_operators` maps each ATen operator to an operator of
the graph. An operator that is not in its table keeps its own name and is reported as unknown.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from foretell.frontends.torch.aten_operators import AtenCall, Ref, Refinement, find_row, references
from foretell.frontends.torch.composed import write_out
from foretell.frozen import dataclass
from foretell.graph import Graph, Node, Tensor
from foretell.graph.ir.batch import mark_batch_axes
from foretell.graph.ir.node import Attribute
from foretell.graph.ir.operators import foreign_name, lookup


@dataclass(frozen=True)
class AtenProgram:
    """A program: its calls, all its tensors, and the names of its inputs and outputs."""

    name: str
    calls: tuple[AtenCall, ...]
    tensors: Mapping[str, Tensor]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    batch_size: int = 1
    warnings: tuple[str, ...] = field(default=())
    metadata: Mapping[str, str] = field(default_factory=dict)
    released: Mapping[str, int] | None = None  # tensor → the number of calls after which the program let go of it
    names: tuple[str, ...] = ()  # all names that a trace gave to tensors, in this order, also of calls that it removed


def assemble(program: AtenProgram) -> Graph:
    """Return the graph of a program, with batch axes marked."""
    steps, all_tensors = write_out(program.calls, program.tensors)
    made = [[node for call in step if (node := _node(call, all_tensors)) is not None] for step in steps]
    nodes = [node for step in made for node in step]
    used = (
        {name for node in nodes for name in (*node.inputs, *node.outputs)} | set(program.inputs) | set(program.outputs)
    )
    # weights that no call reads stay: they take memory
    tensors = {n: t for n, t in all_tensors.items() if n in used or t.kind in ("parameter", "buffer")}
    graph = Graph.build(
        program.name,
        nodes,
        tensors,
        program.inputs,
        [o for o in program.outputs if o in tensors],
        batch_size=program.batch_size,
        warnings=program.warnings,
        metadata=program.metadata,
        held=None if program.released is None else _held(made, program.released),
    )
    return mark_batch_axes(graph)


def _held(made: list[list[Node]], released: Mapping[str, int]) -> dict[str, str]:
    """The tensors that outlive their last reader, and the last node that runs before the program lets go of them.

    ``made`` has the nodes of every call.
    """
    last_use: dict[str, int] = {}
    running: list[int] = []  # for each call the last one up to it that became nodes
    for position, nodes in enumerate(made):
        for node in nodes:
            last_use |= dict.fromkeys((*node.inputs, *node.outputs), position)
        running.append(position if nodes else running[-1] if running else -1)
    ends = {name: running[calls - 1] for name, calls in released.items() if name in last_use and calls}
    return {name: made[end][-1].name for name, end in ends.items() if end > last_use[name]}


def canonical_operator(target: str) -> str:
    """Return the operator that an ATen target becomes; "" if it is unknown.

    >>> canonical_operator("aten.scaled_dot_product_attention.default"), canonical_operator("aten.relu_.default")
    ('Attention', 'Relu')
    """
    row = find_row(target)[0]
    return row.op if row else ""


def _node(call: AtenCall, tensors: Mapping[str, Tensor]) -> Node | None:
    """The node of a call, or None if it does no work."""
    row, inplace = find_row(call.target)
    outputs = tuple(o if o in tensors else "" for o in call.outputs)
    if (row is not None and not row.op) or not any(outputs):
        return None  # runs nothing on the device, such as sym_size, or returns no tensor
    inputs = list(references(call.arguments.values()))
    attributes: dict[str, Attribute] = {}
    if row is None:
        # an unknown operator keeps its namespace as the domain, so that nothing takes it for a known one
        parts = call.target.removeprefix("torch.ops.").split(".")
        return Node(
            call.name,
            foreign_name(parts[1] if len(parts) > 1 else parts[0], parts[0]),
            tuple(i if i in tensors else "" for i in inputs),
            outputs,
            {},
            parts[0],
            call.module,
            call.name,
        )
    for attribute, argument in row.attributes:
        value = _attribute(call.arguments.get(argument))
        if value is not None:
            attributes[attribute] = value
    op = row.op
    if row.refine is not None:
        op = row.refine(Refinement(call, tensors, inputs, attributes)) or op
    # an in-place scatter counts as a copy: only element-wise operators are known to reuse the storage of their input
    if inplace and lookup(op).kind == "elementwise":
        attributes["inplace"] = 1
    return Node(
        call.name, op, tuple(i if i in tensors else "" for i in inputs), outputs, attributes, "", call.module, call.name
    )


def _attribute(value: Any) -> Attribute | None:
    """An argument as the graph stores it; None for tensors and whatever else it cannot store."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, Ref) or value is None:
        return None
    if isinstance(value, int | float | str):
        return value
    if isinstance(value, list | tuple) and all(isinstance(v, int | float) for v in value):
        return tuple(value)
    return None
