"""Graph: checks that every node of a known operator has the operands that the rules of its operator read.

Costs, layouts and memory look an operator up by its name and then read its first inputs and its first output. A file
may leave any of them out. Such a node is refused here, once, so that no rule has to ask. The same holds for
attributes that count something, since sizes are multiplied by them, and for the axis of channels of a convolution or
an attention.
"""

from foretell.errors import GraphError
from foretell.graph.ir.graph import Graph
from foretell.graph.ir.node import Node
from foretell.graph.ir.operators import lookup

# how many of the first inputs must be present, by kind of operator; 1 for all others
_INPUTS = {"contraction": 2, "recurrent": 3, "generator": 0, "free": 0, "control": 0, "unknown": 0}
_INPUTS_OF = {"Einsum": 1, "Where": 1, "QLinearConv": 4, "DequantizeLinear": 1}
_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose", "FusedConv"})
_COUNTS = {"directions": 1, "group": 1, "layers": 1, "num_groups": 1, "trips": 0}  # and the least that each may be
# these may be asked for a later output alone, such as the last state
_WITHOUT_FIRST_OUTPUT = frozenset({"recurrent", "control", "free", "unknown"})


def check_operands(graph: Graph) -> None:
    """Raise `GraphError` if a node lacks an input or output that its operator must have; bodies are checked, too."""
    for node in graph.nodes:
        _check(node)
        _check_axes(graph, node)
        for body in node.bodies:
            check_operands(body)


def _check(node: Node) -> None:
    kind = lookup(node.op, node.domain).kind
    required = _INPUTS_OF.get(node.op, _INPUTS.get(kind, 1)) if kind != "unknown" else 0
    if kind == "recurrent" and "hidden_size" not in node.attributes:
        required = 1  # PyTorch lists states and weights in other orders
    present = node.inputs[:required]
    if len(present) < required or not all(present):
        raise GraphError(
            f"Node {node.name!r} ({node.op}) lacks an input: it has {len([i for i in node.inputs if i])}, and the "
            f"first {required} are needed."
        )
    if kind not in _WITHOUT_FIRST_OUTPUT and not (node.outputs and node.outputs[0]):
        raise GraphError(f"Node {node.name!r} ({node.op}) lacks its first output.")
    for name, least in _COUNTS.items() if kind != "unknown" else ():
        count = node.integer(name, 1)
        if count < least:
            raise GraphError(f"Node {node.name!r} ({node.op}) has {name} = {count}; at least {least} is needed.")


def _check_axes(graph: Graph, node: Node) -> None:
    least = 2 if node.op in _CONVOLUTIONS else 1 if node.op == "Attention" else 0
    for tensor in (graph.tensors[node.inputs[0]], graph.tensors[node.outputs[0]]) if least else ():
        if len(tensor.shape) < least:
            raise GraphError(
                f"Node {node.name!r} ({node.op}) needs an axis of channels; {tensor.name!r} has shape {tensor.shape}."
            )
