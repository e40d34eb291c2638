"""Advisors: replaces attention that is spelled out by one fused operator, as ``scaled_dot_product_attention`` runs it.

Idea: a program that multiplies queries and keys, takes a softmax and multiplies by the values writes the scores of all
pairs of tokens to memory, three times or more. The fused operator keeps them on the chip.

Windows of images have two masks: a bias for all, and a mask for each window, which is added in another shape. They
become one mask first, as the fused operator takes it.

Limits: those of `foretell.frontends.normalise.attention`: tensors of four axes, at most one mask. What a file ties
together as one operator already (`foretell.graph.ir.patterns`) is counted as fused and stays.
"""

from dataclasses import replace

from foretell.frontends.normalise.attention import join_attention
from foretell.frontends.normalise.draft import Draft
from foretell.graph import Graph, Node
from foretell.graph.ir.batch import mark_batch_axes

ATTENTION = "Attention"
_IDLE = frozenset({"Dropout", "Identity", "Cast"})  # the fused operator drops out and keeps its precision by itself


def fuse_attention(graph: Graph) -> Graph:
    """The graph with every spelled attention as one operator; the same graph where there is none."""
    if not any(node.op == "Softmax" and node.origin_op != ATTENTION for node in graph.nodes):
        return graph
    # what runs as one already must not be taken apart
    if any(node.origin_op == ATTENTION for node in graph.nodes):
        return graph
    draft = Draft(graph)
    idle: list[tuple[Node, list[Node]]] = []
    for node in draft.current_nodes():
        if node.op == "Softmax":
            _merge_masks(draft, node)
            idle.append((node, _drop_idle(draft, node)))
    join_attention(draft)
    for softmax, dropped in idle:
        _restore(draft, softmax, dropped)
    fused = draft.finish()
    before, after = (len([node for node in one.nodes if node.op == ATTENTION]) for one in (graph, fused))
    if after == before:
        return graph
    names = {node.name for node in fused.nodes}
    held = graph.held
    if held is not None:
        # a tensor that was held until a node that is gone is now freed after its last reader
        held = {name: node for name, node in held.items() if name in fused.tensors and node in names}
    marked = mark_batch_axes(fused)
    # only new tensors: the axes of the others were found at a batch size that no layer has by itself
    tensors = {name: graph.tensors.get(name, tensor) for name, tensor in marked.tensors.items()}
    return replace(fused, tensors=tensors, held=held, fixed=graph.fixed & tensors.keys())


def _drop_idle(draft: Draft, softmax: Node) -> list[Node]:
    """Remove what stands between a softmax and the product with the values and is idle in the fused operator."""
    dropped: list[Node] = []
    node = draft.only_reader(softmax.outputs[0])
    while node is not None and node.op in _IDLE and not any(node.outputs[1:]):
        dropped.append(node)
        node = draft.only_reader(node.outputs[0])
    if not dropped or node is None or node.op != "MatMul":
        return []
    draft.remove(dropped)
    draft.redirect(dropped[-1].outputs[0], softmax.outputs[0])
    return dropped


def _restore(draft: Draft, softmax: Node, dropped: list[Node]) -> None:
    """Put back what was dropped beside a softmax that was not joined."""
    if not dropped or draft.maker(softmax.outputs[0]) is not softmax:
        return
    draft.redirect(softmax.outputs[0], dropped[-1].outputs[0])
    for node in dropped:
        draft.put(node.op, node.inputs, node.outputs, dict(node.attributes), like=node)


def _merge_masks(draft: Draft, softmax: Node) -> None:
    """Turn reshape(reshape(scores + bias) + mask) into scores + (bias + mask), where only the softmax reads it."""
    last = draft.made_by(softmax.inputs[0], "Reshape")
    masked = draft.made_by(last.inputs[0], "Add") if last else None
    first = next((node for name in masked.inputs if (node := draft.made_by(name, "Reshape"))), None) if masked else None
    biased = draft.made_by(first.inputs[0], "Add") if first else None
    if last is None or masked is None or first is None or biased is None:
        return
    chain = (biased, first, masked, last)
    if any(draft.only_reader(node.outputs[0]) is None for node in chain) or len(biased.inputs) != 2:
        return
    scores = next((name for name in biased.inputs if draft.made_by(name, "MatMul", "Mul", "Div")), "")
    if not scores or draft.shape(scores) != draft.shape(last.outputs[0]):
        return
    bias = next(name for name in biased.inputs if name != scores)
    mask = next(name for name in masked.inputs if name != first.outputs[0])
    wide = draft.tensor(mask, draft.shape(masked.outputs[0]), "activation")
    flat, merged = (draft.tensor(mask, draft.shape(scores), "activation") for _ in range(2))
    draft.remove(chain)
    draft.put("Expand", (mask,), (wide,), like=softmax)
    draft.put("Reshape", (wide,), (flat,), like=softmax)
    draft.put("Add", (bias, flat), (merged,), like=softmax)
    draft.put("Add", (scores, merged), (last.outputs[0],), like=softmax)
