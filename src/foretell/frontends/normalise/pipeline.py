"""Frontends: rewrites the graph of a converted model so that it looks like the same network from PyTorch.

Idea: tf2onnx, jax2onnx and paddle2onnx write one network in many ways. They reshape weights before use, write norms,
activations and attention as chains of small nodes, and keep images channels-last between transposes. Costed as they
stand, these graphs would differ from PyTorch's in memory traffic and in the number of kernels. The passes below run in
a fixed order: drop nodes that do nothing, fold rearranged weights, simplify the indices of embeddings, lower Einsum to
products, join recurrent loops, norms, activations, linear layers and attention into one operator each, and finally move
to channels-first. The order matters: norms are joined before activations, because both consist of the same element-wise
nodes, and layouts are changed when only complete operators are left. At the end, patterns and batch axes are marked
again.

Source: the forms were collected from the output of the three converters; ``docs/frameworks.md`` lists what is tested.

Limits: the values of weights are not known here, so a pattern is recognised by structure and shape alone: any scalar
counts as the ½ of a GELU. A form that no pass knows stays as it is, and is still costed correctly, but as several
kernels.
"""

from dataclasses import replace

from foretell.frontends.normalise.attention import join_attention
from foretell.frontends.normalise.draft import Draft
from foretell.frontends.normalise.einsum import lower_einsum
from foretell.frontends.normalise.layouts import settle_layouts
from foretell.frontends.normalise.norms import join_norms
from foretell.frontends.normalise.operators import join_operators
from foretell.frontends.normalise.recurrence import join_recurrence
from foretell.frontends.onnx.control import mark_bodies
from foretell.graph import Graph, Node
from foretell.graph.ir.batch import mark_batch_axes
from foretell.graph.ir.patterns import tie_patterns
from foretell.graph.ir.tensor import TensorKind

# nodes with which JAX and TensorFlow turn negative indices into positive ones
_WRAPPING = frozenset({"Add", "Less", "Where", "Cast", "Not", "Mul"})
_REARRANGING = frozenset(
    {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Split", "Concat", "Identity"}
)


def mark_buffers(graph: Graph, names: frozenset[str]) -> Graph:
    """Return the graph with the named weights as buffers: the framework does not train them."""
    tensors = {
        n: replace(t, kind="buffer") if n in names and t.kind == "parameter" else t for n, t in graph.tensors.items()
    }
    return replace(graph, tensors=tensors)


def normalise_converted(graph: Graph) -> Graph:
    """Return the graph in the form that a PyTorch model would have."""
    # patterns that were found in the converter's form are forgotten, so that tie_patterns looks again at the end
    plain = replace(graph, nodes=tuple(replace(n, origin="", origin_op="") for n in graph.nodes))
    for rewrite in _PASSES:
        draft = Draft(plain)
        rewrite(draft)
        plain = draft.finish()
    return mark_bodies(mark_batch_axes(tie_patterns(plain)))


def drop_idle(draft: Draft) -> None:
    """Drop nodes that only pass their input on: an Identity, a Concat of one tensor, a reshape to the same shape."""
    for node in draft.current_nodes():
        if not node.inputs or not node.inputs[0] or len(node.outputs) != 1 or not _is_idle(draft, node):
            continue
        source, target = node.inputs[0], node.outputs[0]
        if target not in draft.outputs:
            draft.remove([node])
            draft.redirect(target, source)
        # an output of the graph keeps its name: the node before writes it
        elif draft.only_reader(source) is node and draft.maker(source) is not None:
            maker = draft.maker(source)
            assert maker is not None
            draft.remove([node])
            draft.change(maker, outputs=tuple(target if o == source else o for o in maker.outputs))


def _is_idle(draft: Draft, node: Node) -> bool:
    """Whether a node passes its input on unchanged."""
    source, target = draft.tensors[node.inputs[0]], draft.tensors[node.outputs[0]]
    if source.shape != target.shape or source.dtype != target.dtype:
        return False
    if node.op == "Concat":
        return len([i for i in node.inputs if i]) == 1
    if node.op == "Transpose":
        return node.integers("perm") == tuple(range(len(source.shape)))
    return node.op in ("Identity", "Dropout", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Expand", "Cast", "Slice")


def fold_weights(draft: Draft) -> None:
    """Replace weights that are only rearranged before use by weights that have the final shape from the start."""
    for node in draft.current_nodes():
        if node.op in _REARRANGING or node.bodies:
            continue
        for name in dict.fromkeys(node.inputs):
            if name and draft.maker(name) is not None:
                _fold_weight(draft, name)


def _fold_weight(draft: Draft, name: str) -> None:
    """Fold one tensor if it comes from weights through rearranging nodes alone."""
    sources: set[str] = set()
    folded: list[Node] = []
    waiting, seen = [name], set[str]()
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        if draft.is_weight(current):
            sources.add(current)
            continue
        maker = draft.maker(current)
        if maker is None or maker.op not in _REARRANGING:
            return
        folded.append(maker)
        waiting.extend(i for i in maker.inputs if i)
    kinds = {draft.tensors[s].kind for s in sources}
    kind: TensorKind = "parameter" if "parameter" in kinds else "buffer" if "buffer" in kinds else "constant"
    target = draft.tensors[name]
    if kind == "parameter":
        # a weight that others read, too, or that is only used in part, must stay as it is
        inside = {id(n) for n in folded}
        shared = any(id(r) not in inside for s in sources for r in draft.readers(s))
        shared = shared or any(
            id(r) not in inside for n in folded for o in n.outputs if o != name for r in draft.readers(o)
        )
        if shared or target.elements != sum(draft.tensors[s].elements for s in sources) or name in draft.outputs:
            return
    # one new weight of the final shape; the old ones and the nodes between disappear, because no node reads them
    draft.redirect(name, draft.tensor(sorted(sources)[0], target.shape, kind))


def drop_wrapping(draft: Draft) -> None:
    """Drop the nodes that make negative indices of an embedding positive: PyTorch's embedding does not have them."""
    for gather in [n for n in draft.nodes.values() if n.op == "Gather" and len(n.inputs) > 1]:
        sources: dict[str, None] = {}
        ops: set[str] = set()
        # walk up from the indices: where(i < 0, i + n, i) comes from one tensor
        waiting, steps = [gather.inputs[1]], 0
        while waiting and steps < 32:
            current, steps = waiting.pop(), steps + 1
            maker = draft.maker(current)
            if maker is None or maker.op not in _WRAPPING:
                sources[current] = None
                continue
            ops.add(maker.op)
            waiting.extend(i for i in maker.inputs if i and not draft.is_scalar(i))
        index = next(iter(sources), "")
        if len(sources) == 1 and "Less" in ops and draft.shape(index) == draft.shape(gather.inputs[1]):
            draft.change(gather, inputs=(gather.inputs[0], index, *gather.inputs[2:]))


_PASSES = (
    drop_idle,
    fold_weights,
    drop_wrapping,
    lower_einsum,
    join_recurrence,
    join_norms,
    join_operators,
    join_attention,
    settle_layouts,
    drop_idle,
)
