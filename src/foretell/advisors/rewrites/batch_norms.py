"""Advisors: folds batch norms into the layer before them, as ``torch.nn.utils.fuse_conv_bn_eval`` does.

Idea: in inference a batch norm multiplies each channel by a number and adds another. A convolution or a linear layer
whose result only the batch norm reads can do both: its weights are multiplied, and the rest becomes its bias.

Limits: only in inference, where the statistics do not change. A layer whose result is read twice, or leaves the graph,
keeps its batch norm.
"""

from dataclasses import replace

from foretell.graph import Graph, Node

_LAYERS = frozenset({"Conv", "ConvTranspose", "Gemm"})


def fold_batch_norms(graph: Graph) -> Graph:
    """The graph without the batch norms that can be folded; the same graph where none can."""
    removed: dict[int, int] = {}  # position of a batch norm → position of the layer that takes it over
    for position, node in enumerate(graph.nodes):
        if node.op == "BatchNormalization" and len(node.inputs) >= 3 and not any(node.outputs[1:]):
            layer = graph.producers.get(node.inputs[0])
            if layer is not None and layer not in removed.values() and _can_fold(graph, layer):
                removed[position] = layer
    if not removed:
        return graph
    norm_of = {layer: position for position, layer in removed.items()}
    nodes = [
        _folded(node, graph.nodes[norm_of[position]]) if position in norm_of else node
        for position, node in enumerate(graph.nodes)
        if position not in removed
    ]
    return _with_nodes(
        graph, nodes, {graph.nodes[norm].name: graph.nodes[layer].name for norm, layer in removed.items()}
    )


def _can_fold(graph: Graph, layer: int) -> bool:
    """Whether a node is a layer with one result that only its batch norm reads."""
    node = graph.nodes[layer]
    if node.op not in _LAYERS or len(node.inputs) < 2 or any(node.outputs[1:]):
        return False
    is_weight = graph.tensors[node.inputs[1]].kind == "parameter"
    return is_weight and len(graph.consumers.get(node.outputs[0], ())) == 1 and node.outputs[0] not in graph.outputs


def _folded(layer: Node, norm: Node) -> Node:
    """The layer that also does what the batch norm did: it has a bias, and makes the batch norm's result."""
    has_bias = len(layer.inputs) > 2 and bool(layer.inputs[2])
    bias = layer.inputs[2] if has_bias else norm.inputs[2]
    return replace(layer, inputs=(*layer.inputs[:2], bias, *layer.inputs[3:]), outputs=norm.outputs)


def _with_nodes(graph: Graph, nodes: list[Node], renamed: dict[str, str]) -> Graph:
    """The graph with other nodes, and without the tensors that no node touches any more."""
    used = {name for node in nodes for name in (*node.inputs, *node.outputs)} | {*graph.inputs, *graph.outputs}
    was_used = {name for node in graph.nodes for name in (*node.inputs, *node.outputs)}
    tensors = {name: tensor for name, tensor in graph.tensors.items() if name in used or name not in was_used}
    held = graph.held
    if held is not None:
        held = {name: renamed.get(node, node) for name, node in held.items() if name in tensors}
    # built anew: a result of the batch norm is made earlier now, before nodes that stood in between
    changed = Graph.build(
        graph.name, nodes, tensors, graph.inputs, graph.outputs, batch_size=graph.batch_size,
        warnings=graph.warnings, metadata=graph.metadata, held=held,
    )  # fmt: skip
    return replace(changed, fixed=graph.fixed & tensors.keys())
