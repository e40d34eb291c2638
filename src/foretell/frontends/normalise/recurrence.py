"""Frontends: replaces a Loop over time steps whose body is an LSTM or GRU cell by one LSTM or GRU operator.

Idea: a cell is recognised by its activations: an LSTM has three sigmoids and two tanhs, a GRU two and one. Then the
sizes must agree: the weight matrices of the loop have as many elements as those of such a layer.

Limits: the equations of the cell are not compared, only its operators and sizes. Loops in both directions, and cells
with other activations, stay loops.
"""

from collections import Counter
from dataclasses import replace

from foretell.frontends.normalise.draft import Draft
from foretell.graph import Node, Tensor

# (number of sigmoids, number of tanhs) in the body → operator, number of gates
_CELLS = {(3, 2): ("LSTM", 4), (2, 1): ("GRU", 3)}
_CELL_OPERATORS = frozenset(
    {
        "MatMul",
        "Gemm",
        "Add",
        "Sub",
        "Mul",
        "Sigmoid",
        "Tanh",
        "Split",
        "Slice",
        "Concat",
        "Gather",
        "Select",
        "Squeeze",
    }
    | {"Unsqueeze", "Reshape", "Transpose", "Cast", "Less", "And", "Identity", "Neg"}
)


def join_recurrence(draft: Draft) -> None:
    """Replace the loops whose bodies have the operators of a cell."""
    for node in draft.current_nodes():
        if node.op == "Loop" and len(node.bodies) == 1 and node.integer("trips", 0) > 1:
            ops = Counter(inner.op for inner in node.bodies[0].nodes)
            cell = _CELLS.get((ops["Sigmoid"], ops["Tanh"]))
            if cell is not None and set(ops) <= _CELL_OPERATORS:
                _join(draft, node, *cell)


def _join(draft: Draft, loop: Node, op: str, gates: int) -> None:
    """Replace one loop if its inputs, outputs and weights have the sizes of a recurrent layer."""
    steps = loop.integer("trips", 0)
    read = [o for o in loop.outputs if o and (o in draft.outputs or draft.readers(o))]
    sequences = [o for o in read if len(draft.shape(o)) == 3 and draft.shape(o)[0] == steps]
    states = [o for o in read if len(draft.shape(o)) == 2]
    inputs = [i for i in dict.fromkeys(loop.inputs) if i and not draft.is_weight(i) and len(draft.shape(i)) == 3]
    inputs = [i for i in inputs if draft.shape(i)[0] == steps]
    if len(sequences) > 1 or len(states) > 2 or {*sequences, *states} != set(read) or not read or len(inputs) != 1:
        return
    source = inputs[0]
    size, width = draft.shape(read[0])[-1], draft.shape(source)[-1]
    weights = [draft.tensors[i] for i in dict.fromkeys(loop.inputs) if draft.is_weight(i)]
    # weights may be inputs of the loop or lie in its body
    weights += [t for t in loop.bodies[0].tensors.values() if t.kind == "parameter"]
    trained = [t for t in weights if t.kind == "parameter" and t.elements > 1]
    biases = [t for t in trained if t.elements in (size, gates * size, 2 * gates * size) and _is_row(t, size, gates)]
    matrices = [t for t in trained if t not in biases]
    # input and recurrent weights together: gates × hidden × (input + hidden)
    if not matrices or sum(t.elements for t in matrices) != gates * size * (width + size):
        return
    _put(draft, loop, op, source, matrices[0], gates * size, sum(t.elements for t in biases), sequences, states)


def _is_row(tensor: Tensor, size: int, gates: int) -> bool:
    return len(tensor.shape) == 1 or (tensor.shape[0] in (1, 2) and tensor.shape[-1] in (size, gates * size))


def _put(
    draft: Draft,
    loop: Node,
    op: str,
    source: str,
    like: Tensor,
    rows: int,
    biases: int,
    sequences: list[str],
    states: list[str],
) -> None:
    """Add the operator in ONNX's form, and views of its results in the shapes that the loop had."""
    gates = 4 if op == "LSTM" else 3
    steps, batch, width = draft.shape(source)
    size = rows // gates
    draft.tensors.setdefault(like.name, like)
    weights = [draft.tensor(like.name, (1, rows, columns), "parameter") for columns in (width, size)]
    if biases:
        weights.append(draft.tensor(like.name, (1, biases), "parameter"))
    draft.remove([loop])
    results = [draft.tensor(source, (steps, 1, batch, size), "activation")]
    results += [draft.tensor(source, (1, batch, size), "activation") for _ in states]
    draft.put(op, (source, *weights), tuple(results), {"hidden_size": size, "direction": "forward"}, like=loop)
    for name, result, axis in [(n, results[0], 1) for n in sequences] + [
        (n, r, 0) for n, r in zip(states, results[1:])
    ]:
        draft.tensors[name] = replace(draft.tensors[name], kind="activation")
        draft.put("Squeeze", (result,), (name,), {"axes": (axis,)}, like=loop)
