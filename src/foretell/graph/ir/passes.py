"""Graph: passes that rewrite a graph: identity removal, constant folding, autocast, TF32. None mutates its argument."""

from collections.abc import Callable
from dataclasses import replace

from foretell.errors import GraphError
from foretell.graph.ir.graph import Graph
from foretell.graph.ir.node import Node
from foretell.graph.ir.operators import lookup
from foretell.graph.ir.tensor import Tensor

Pass = Callable[[Graph], Graph]

# torch.autocast on CUDA runs the kinds of _AUTOCAST_LOW in the low precision and the operators of _AUTOCAST_FULL in
# fp32; all others run in the widest dtype of their inputs
_AUTOCAST_LOW = frozenset({"contraction", "attention", "recurrent"})
_AUTOCAST_FULL = frozenset(
    {
        "Softmax", "LogSoftmax", "LayerNormalization", "GroupNormalization", "RMSNormalization", "Exp", "Log", "Pow",
        "Reciprocal", "Rsqrt", "Softplus", "Erf", "Acos", "Asin", "Cosh", "Sinh", "Tan", "CumSum", "CumProd",
        "ReduceSum", "ReduceProd", "ReduceL2", "ReduceL1", "SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss",
        "Resize", "Upsample",
    }
)  # fmt: skip
MATMUL = "matmul"  # in the metadata of a graph: the precision of its products, where it is not that of its tensors
_AUTOCAST_DTYPES = frozenset({"fp32", "fp16", "bf16"})


def run_passes(graph: Graph, passes: tuple[Pass, ...]) -> Graph:
    """Run passes in order. If a pass breaks the graph, the error names that pass."""
    for rewrite in passes:
        graph = rewrite(graph)
        try:
            graph.validate()
        except GraphError as error:
            raise GraphError(f"The pass {rewrite.__name__} broke the graph: {error}") from error
    return graph


def remove_identities(graph: Graph) -> Graph:
    """Drop nodes that only pass their input on: Identity, and Dropout at inference. Graph outputs keep their names."""
    aliases: dict[str, str] = {}
    nodes, graph_outputs = [], frozenset(graph.outputs)
    for node in graph.nodes:
        inputs = tuple(aliases.get(i, i) for i in node.inputs)
        # a Dropout whose mask is read, and an Identity that makes an output of the graph, must stay
        if (
            node.op in ("Identity", "Dropout")
            and inputs
            and inputs[0]
            and node.outputs[0] not in graph_outputs
            and not any(node.outputs[1:])
        ):
            source, target = graph.tensors[inputs[0]], graph.tensors[node.outputs[0]]
            if source.shape == target.shape and source.dtype == target.dtype:
                aliases[node.outputs[0]] = inputs[0]
                continue
        nodes.append(replace(node, inputs=inputs) if inputs != node.inputs else node)
    if len(nodes) == len(graph.nodes):
        return graph
    return replace(graph, nodes=tuple(nodes), tensors={n: t for n, t in graph.tensors.items() if n not in aliases})


def fold_constants(graph: Graph) -> Graph:
    """Turn everything that depends on no input into constants, as a compiler does. Eager PyTorch runs it every time."""
    fixed = {n for n, t in graph.tensors.items() if t.kind in ("parameter", "buffer", "constant")}
    nodes: list[Node] = []
    folded: set[str] = set()
    graph_outputs = frozenset(graph.outputs)
    for node in graph.nodes:
        if not node.bodies and all(i in fixed for i in node.inputs if i) and graph_outputs.isdisjoint(node.outputs):
            fixed.update(node.outputs)
            folded.update(o for o in node.outputs if o)
        else:
            nodes.append(node)
    # of the folded tensors only those survive that a remaining node reads
    read = {i for node in nodes for i in node.inputs}
    tensors: dict[str, Tensor] = {}
    for name, tensor in graph.tensors.items():
        if name in folded:
            if name in read:
                tensors[name] = replace(tensor, kind="constant", batch_axis=None)
        else:
            tensors[name] = tensor
    return replace(graph, nodes=tuple(nodes), tensors=tensors)


def normalise(graph: Graph) -> Graph:
    """Bring a graph into the form that every front-end returns. BatchNorm stays, because the framework runs it."""
    return run_passes(graph, (remove_identities,))


def autocast(graph: Graph, dtype: str) -> Graph:
    """Return the graph as ``torch.autocast(dtype)`` runs it on CUDA: parameters stay, contractions read casts of them.

    A parameter is cast once, because autocast caches these casts. An activation is cast again for every operator that
    needs it in another dtype.
    """
    tensors, nodes = dict(graph.tensors), []
    cached: dict[str, str] = {}
    for node in graph.nodes:
        kind = lookup(node.op, node.domain).kind
        inputs = list(node.inputs)
        op_dtype = dtype if kind in _AUTOCAST_LOW else "fp32" if node.op in _AUTOCAST_FULL else None
        for position, name in enumerate(inputs if op_dtype else ()):
            if not name or tensors[name].dtype not in _AUTOCAST_DTYPES or tensors[name].dtype == op_dtype:
                continue
            if name not in cached:
                # the name of the node keeps repeated casts of one activation apart
                cast = f"{name}@{op_dtype}" if tensors[name].kind == "parameter" else f"{name}@{op_dtype}:{node.name}"
                tensors[cast] = replace(tensors[name], name=cast, dtype=str(op_dtype), kind="activation")
                nodes.append(Node(cast, "Cast", (name,), (cast,), {"to": str(op_dtype)}, module=node.module))
                if tensors[name].kind == "parameter":
                    cached[name] = cast
            inputs[position] = cached.get(name, cast)
        # an explicit cast of the model keeps its dtype
        for name in node.outputs:
            if name and tensors[name].dtype in _AUTOCAST_DTYPES and node.op not in ("Cast", "CastLike"):
                tensors[name] = replace(
                    tensors[name], dtype=op_dtype or _promoted(node, [tensors[i] for i in inputs if i], dtype)
                )
        nodes.append(replace(node, inputs=tuple(inputs)) if tuple(inputs) != node.inputs else node)
    return replace(graph, nodes=tuple(nodes), tensors=tensors)


def in_tf32(graph: Graph) -> Graph:
    """Return the graph as it runs with ``torch.backends.cuda.matmul.allow_tf32``: products of fp32 on tensor cores."""
    return replace(graph, metadata={**graph.metadata, MATMUL: "tf32"})


def _promoted(node: Node, inputs: list[Tensor], dtype: str) -> str:
    """The dtype of an operator that autocast leaves alone: the widest of its tensors. A norm follows its input."""
    # scalars do not take part in type promotion, unless there is nothing else
    deciding = (
        inputs[:1] if lookup(node.op, node.domain).kind == "normalisation" else [t for t in inputs if t.shape] or inputs
    )
    floats = [t.dtype for t in deciding if t.is_float]
    return dtype if floats and all(f == dtype for f in floats) else "fp32"
