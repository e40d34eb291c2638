"""Lab: graph arrays: a workload as the arrays that graph networks read: nodes, edges, and the whole graph.

There are two layouts of a node, DIPPM's and TraPPM's, over the same nodes and edges. All values are raw: a network that
needs logarithms or standard scores computes them and stores their constants.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from foretell.features.operator_codes import FIRST_CODED
from foretell.graph import CostTable, Graph, graph_costs
from foretell.graph.ir.node import Node
from foretell.graph.ir.operators import OPERATORS as KNOWN
from foretell.graph.ir.operators import lookup
from foretell.graph.ir.tensor import Tensor
from foretell.records import Workload
from foretell.units import GIGA, KILO, TERA

# The operators of the unlabelled graphs, commonest first, and a few that models of other kinds have. The last column
# of the one-hot is "other".
OPERATORS = (
    "Reshape", "Add", "Gemm", "Transpose", "Conv", "Mul", "BatchNormalization", "Dropout", "Relu", "Slice", "Identity",
    "Concat", "LayerNormalization", "Unsqueeze", "Gelu", "Contiguous", "Attention", "ReduceMean", "Pow", "Neg", "Rsqrt",
    "MatMul", "Select", "Silu", "Split", "Expand", "Div", "Clip", "ConstantOfShape", "Softmax", "Sigmoid", "CopyTo",
    "Pad", "GatherND", "GroupNormalization", "Range", "Tanh", "Cast", "HardSwish", "Sqrt", "GlobalAveragePool",
    "ReduceL2", "AveragePool", "LeakyRelu", "Squeeze", "Tile", "RMSNormalization", "GatherElements", "MaxPool",
    "Einsum", "Gather", "Resize", "Where", "RandomNormal", "Not", "Roll", "HardSigmoid", "ReduceSum", "Exp",
    "DropoutMask", "Sin", "Cos", "InstanceNormalization", "LSTM", "ConvTranspose", "Addcmul", "Copy",
    "AdaptiveAveragePool", "ReduceVariance", "ReduceMax", "Equal", "Log", "CumSum", "Unfold", "Im2Col", "Less",
    "Col2Im", "Abs", "Greater", "Min", "Sign", "And", "Ceil", "LessOrEqual", "GRU", "RNN", "OneHot", "ReduceAny",
    "Flip", "Sub", "Elu", "Softplus", "PRelu", "TopK", "ScatterND", "GroupedMatMul", "SelectiveScan",
)  # fmt: skip
OPERATOR_COLUMNS = (*OPERATORS, "other")
CLASSES = (
    "conv2d", "conv2d_transpose", "dense", "batch_matmul", "bias_add", "softmax", "dropout", "layer_norm", "reshape",
    "transpose", "add", "split", "multiply", "squeeze", "adaptive_avg_pool2d", "max_pool2d",
)  # fmt: skip
# What TVM has beside them, so that every node has a class; the published 16 leave a third of the nodes without one.
FURTHER_CLASSES = (
    "relu", "activation", "batch_norm", "norm", "elementwise", "reduction", "concatenate", "view", "movement", "index",
    "avg_pool2d", "recurrent", "generator", "other",
)  # fmt: skip
ATTRIBUTES = (
    "stride_0", "stride_1", "pad_0", "pad_1", "pad_2", "pad_3", "dilation_0", "dilation_1", "groups", "channels",
    "kernel_0", "kernel_1",
)  # fmt: skip
COSTS = ("macs", "parameters", "memory_bytes")
TARGET_COLUMNS = (
    "fp32", "fp16", "bf16", "inference", "training-sgd", "training-adamw", "sm_fraction", "bandwidth_gb_per_s",
    "peak_tflops",
)  # fmt: skip
DIPPM_COLUMNS = ("batch", "macs", "convolutions", "dense", "relu")
TRAPPM_COLUMNS = ("batch", "nodes", "edges", "macs", "parameters", "memory_bytes")
WHOLE_COLUMNS = (
    "batch", "nodes", "edges", "macs", "parameters", "memory_bytes", "convolutions", "dense", "relu", "input_side",
    *TARGET_COLUMNS,
)  # fmt: skip
# behind the others where `GraphArrays.with_time` put them
TIME_COLUMNS = ("bound_ms", "latency_ms")
NODE_DTYPES = ("fp32", "fp16", "bf16")
_MODES = 6  # target columns: the dtypes, then the modes
AXES, DIPPM_AXES = 6, 4
DIPPM_WIDTH = len(CLASSES) + len(ATTRIBUTES) + DIPPM_AXES
TRAPPM_WIDTH = len(OPERATOR_COLUMNS) + 2 * AXES + len(COSTS)
CLASSED_ONE_HOT = len(CLASSES) + len(FURTHER_CLASSES) + len(NODE_DTYPES)
BOUNDED_ONE_HOT = len(OPERATOR_COLUMNS) + _MODES
SHARES = 2
BOUNDED_WIDTH = BOUNDED_ONE_HOT + 2 * AXES + len(COSTS) + 1 + SHARES
CLASSED_WIDTH = CLASSED_ONE_HOT + len(ATTRIBUTES) + DIPPM_AXES

_NUMBERS = {name: number for number, name in enumerate(OPERATORS)}
_OTHER = len(OPERATORS)
_CONVOLUTIONS = ("Conv", "FusedConv", "NhwcConv", "NhwcFusedConv", "QLinearConv", "ConvInteger")
_TRANSPOSED = ("ConvTranspose",)
_DENSE = ("Gemm", "FusedGemm", "QGemm", "MatMulNBits")
_PRODUCTS = ("MatMul", "FusedMatMul", "TransposeMatMul", "MatMulInteger", "QLinearMatMul")
_CLASS_OF = {
    **dict.fromkeys(_CONVOLUTIONS, "conv2d"),
    **dict.fromkeys(_TRANSPOSED, "conv2d_transpose"),
    **dict.fromkeys(_DENSE, "dense"),
    **dict.fromkeys(_PRODUCTS, "batch_matmul"),
    **dict.fromkeys((name for name, entry in KNOWN.items() if entry.kind == "attention"), "batch_matmul"),
    "Softmax": "softmax",
    "Dropout": "dropout",
    "LayerNormalization": "layer_norm",
    "Reshape": "reshape",
    "Flatten": "reshape",
    "Transpose": "transpose",
    "Add": "add",
    "Split": "split",
    "Mul": "multiply",
    "Squeeze": "squeeze",
    "AdaptiveAveragePool": "adaptive_avg_pool2d",
    "GlobalAveragePool": "adaptive_avg_pool2d",
    "MaxPool": "max_pool2d",
}
_ACTIVATIONS = (
    "Gelu", "Silu", "Sigmoid", "Tanh", "HardSwish", "HardSigmoid", "LeakyRelu", "Elu", "Softplus", "PRelu", "Clip",
)  # fmt: skip
_FURTHER_BY_NAME = {
    "Relu": "relu",
    "BatchNormalization": "batch_norm",
    "Concat": "concatenate",
    **dict.fromkeys(_ACTIVATIONS, "activation"),
}
_FURTHER_BY_KIND = {
    "normalisation": "norm", "elementwise": "elementwise", "reduction": "reduction", "view": "view",
    "movement": "movement", "gather": "index", "scatter": "index", "sort": "index", "pooling": "avg_pool2d",
    "recurrent": "recurrent", "generator": "generator",
}  # fmt: skip


def _further_class(operator: str) -> int:
    name = _FURTHER_BY_NAME.get(operator)
    if name is None:
        name = _FURTHER_BY_KIND.get(KNOWN[operator].kind, "other") if operator in KNOWN else "other"
    return len(CLASSES) + FURTHER_CLASSES.index(name)


# by the column of an operator, for nodes that have none of the published classes
_FURTHER_NUMBERS = np.array([_further_class(name) for name in OPERATOR_COLUMNS], np.int16)
_CLASS_NUMBERS = {op: CLASSES.index(name) for op, name in _CLASS_OF.items()}
_WITH_PARAMETER = dict.fromkeys(_PRODUCTS, CLASSES.index("dense")) | {"Add": CLASSES.index("bias_add")}
_NO_CLASS = -1
_LEAST_BOUND_MS = 1e-4  # a model of views alone
_LEAST_NODE_MS = 0.002  # a short kernel of a replayed graph
_SCHEMA = (
    *OPERATOR_COLUMNS, *CLASSES, *ATTRIBUTES, *COSTS, *WHOLE_COLUMNS, f"{AXES}", f"{DIPPM_AXES}",
    *(f"{op}={name}" for op, name in sorted(_CLASS_OF.items()) if op in FIRST_CODED),
)  # fmt: skip
ARRAYS_VERSION = 1  # raise it when values change under the same schema
SCHEMA = hashlib.sha256("|".join(_SCHEMA).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class GraphArrays:
    """The nodes of a workload (without the free ones) in the order in which they run, and the edges between them.

    ``operators`` are columns of `OPERATOR_COLUMNS`, ``classes`` of `CLASSES` or −1. ``edges`` go from the maker of a
    tensor (row 0) to its reader (row 1), each pair once. ``whole`` has `WHOLE_COLUMNS`.
    """

    operators: NDArray[np.int16]
    classes: NDArray[np.int16]
    attributes: NDArray[np.float32]
    input_shapes: NDArray[np.float32]
    output_shapes: NDArray[np.float32]
    costs: NDArray[np.float32]
    edges: NDArray[np.int64]
    whole: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.operators)

    @property
    def dippm_nodes(self) -> NDArray[np.float32]:
        """One row for each node: class, attributes of a convolution, output shape; the fourth axis holds the rest."""
        return np.concatenate([_one_hot(self.classes, len(CLASSES)), self.attributes, self._dippm_shapes], axis=1)

    @property
    def classed_nodes(self) -> NDArray[np.float32]:
        """As `dippm_nodes`, but every node has a class, and knows the dtype of the model."""
        classes = np.where(self.classes >= 0, self.classes, _FURTHER_NUMBERS[self.operators])
        dtypes = np.tile(self.whole_of(NODE_DTYPES).astype(np.float32), (len(self), 1))
        one_hot = _one_hot(classes, len(CLASSES) + len(FURTHER_CLASSES))
        return np.concatenate([one_hot, dtypes, self.attributes, self._dippm_shapes], axis=1)

    @property
    def _dippm_shapes(self) -> NDArray[np.float32]:
        shapes = self.output_shapes[:, :DIPPM_AXES].copy()
        rest = self.output_shapes[:, DIPPM_AXES:]
        shapes[:, -1] *= np.where(rest > 0, rest, 1).prod(axis=1)
        return shapes

    @property
    def bound_ms(self) -> float:
        """The shortest time of a forward pass: every node takes its arithmetic or its traffic, whichever is longer."""
        bandwidth, peak = self.whole_of(("bandwidth_gb_per_s", "peak_tflops"))
        macs, moved = self.costs[:, 0].astype(np.float64), self.costs[:, 2].astype(np.float64)
        seconds = np.maximum(2 * macs / (peak * TERA), moved / (bandwidth * GIGA)).sum()
        return max(float(seconds) * KILO, _LEAST_BOUND_MS)

    @property
    def node_bounds_ms(self) -> NDArray[np.float64]:
        """For every node the longer of its arithmetic and its traffic, and what a short kernel takes at least."""
        bandwidth, peak = self.whole_of(("bandwidth_gb_per_s", "peak_tflops"))
        macs, moved = self.costs[:, 0].astype(np.float64), self.costs[:, 2].astype(np.float64)
        return np.asarray(np.maximum(2 * macs / (peak * TERA), moved / (bandwidth * GIGA)) * KILO + _LEAST_NODE_MS)

    @property
    def bounded_nodes(self) -> NDArray[np.float32]:
        """As `trappm_nodes`; a node knows dtype, mode and its bound, and last its shares of all bounds and bytes."""
        told = np.tile(self.whole_of(TARGET_COLUMNS[:_MODES]).astype(np.float32), (len(self), 1))
        bounds, moved = self.node_bounds_ms, self.costs[:, COSTS.index("memory_bytes")].astype(np.float64)
        shares = np.stack([bounds / bounds.sum(), moved / max(moved.sum(), 1.0)], axis=1)
        sizes = (self.input_shapes, self.output_shapes, self.costs, (bounds * KILO)[:, None])
        return np.concatenate([self.operator_nodes, told, *sizes, shares], axis=1).astype(np.float32)

    @property
    def trappm_nodes(self) -> NDArray[np.float32]:
        """One row for each node: operator, input shape, output shape, MACs, parameters, memory."""
        return np.concatenate([self.operator_nodes, self.input_shapes, self.output_shapes, self.costs], axis=1)

    @property
    def operator_nodes(self) -> NDArray[np.float32]:
        """One row for each node: its operator alone."""
        return _one_hot(self.operators, len(OPERATOR_COLUMNS))

    def whole_of(self, columns: Sequence[str]) -> NDArray[np.float64]:
        """Columns of the whole graph, by name."""
        return self.whole[[(*WHOLE_COLUMNS, *TIME_COLUMNS).index(name) for name in columns]]

    def with_time(self, latency_ms: float) -> "GraphArrays":
        """The same workload, whose latency is known: measured, or told by another network."""
        known = self.whole[: len(WHOLE_COLUMNS)]
        return replace(self, whole=np.append(known, [self.bound_ms, latency_ms]))


def extract_graph_arrays(workload: Workload) -> GraphArrays:
    """The arrays of a workload; shapes, MACs and memory are those of the forward graph at its batch size.

    >>> from foretell.devices import find_device
    >>> from foretell.records import Target
    >>> from foretell.testing import tiny_graph
    >>> arrays = extract_graph_arrays(Workload(tiny_graph(), Target(find_device("h200"))))
    >>> arrays.dippm_nodes.shape, arrays.edges.tolist()
    ((5, 32), [[0, 1, 2, 3], [1, 2, 3, 4]])
    """
    graph = workload.graph
    table = graph_costs(graph)
    is_used = [lookup(node.op, node.domain).kind != "free" for node in graph.nodes]
    nodes = list(compress(graph.nodes, is_used))
    weights = _parameters_and_views(graph)
    classes = [_class_of(node, weights) for node in nodes]
    edges = _edges(graph, is_used)
    return GraphArrays(
        np.array([_NUMBERS.get(node.op, _OTHER) for node in nodes], np.int16),
        np.array(classes, np.int16),
        _matrix((_attributes(graph, node) for node in nodes), len(nodes), len(ATTRIBUTES)),
        _matrix((_shape(_first_activation(graph, node)) for node in nodes), len(nodes), AXES),
        _matrix((_shape(_first_output(graph, node)) for node in nodes), len(nodes), AXES),
        _matrix(
            ((c.macs, c.parameters, c.activation_bytes + c.parameter_bytes) for c in compress(table.nodes, is_used)),
            len(nodes),
            len(COSTS),
        ),
        edges,
        np.array([*_sizes(workload, table, nodes, classes, edges), *_target(workload)], np.float64),
    )


def _one_hot(codes: NDArray[np.int16], width: int) -> NDArray[np.float32]:
    return np.equal(codes[:, None], np.arange(width, dtype=np.int16)).astype(np.float32)


def _matrix(rows: Iterable[Sequence[float]], count: int, width: int) -> NDArray[np.float32]:
    return np.array(list(rows), np.float32).reshape(count, width)


def _edges(graph: Graph, is_used: Sequence[bool]) -> NDArray[np.int64]:
    places = np.cumsum(is_used) - 1
    # a dictionary as an ordered set: several tensors between two nodes are one edge
    pairs = {
        (maker, reader): None
        for reader, node in enumerate(graph.nodes)
        if is_used[reader]
        for name in node.inputs
        if (maker := graph.producers.get(name)) is not None and is_used[maker]
    }
    return places[np.array(list(pairs), np.int64).reshape(-1, 2).T].astype(np.int64).reshape(2, -1)


def _parameters_and_views(graph: Graph) -> set[str]:
    """The names of parameters and of their views (such as a transposed weight)."""
    names = {tensor.name for tensor in graph.tensors.values() if tensor.kind == "parameter"}
    for node in graph.nodes:
        if node.inputs and node.inputs[0] in names and lookup(node.op, node.domain).kind == "view":
            names.update(name for name in node.outputs if name)
    return names


def _class_of(node: Node, weights: set[str]) -> int:
    if node.op in _WITH_PARAMETER:
        read = node.inputs if node.op == "Add" else node.inputs[1:2]
        # TVM, which DIPPM reads, calls a product with a weight dense, and a sum with a weight bias_add
        if any(name in weights for name in read):
            return _WITH_PARAMETER[node.op]
    return _CLASS_NUMBERS.get(node.op, _NO_CLASS)


_NO_ATTRIBUTES = (0.0,) * len(ATTRIBUTES)


def _attributes(graph: Graph, node: Node) -> tuple[float, ...]:
    """The last two spatial axes of a convolution; zeros for other nodes, and for a missing axis."""
    if _CLASS_NUMBERS.get(node.op, _NO_CLASS) not in (0, 1) or len(node.inputs) < 2:
        return _NO_ATTRIBUTES
    kernel = node.integers("kernel_shape") or graph.tensors[node.inputs[1]].shape[2:]
    rank = len(kernel)
    strides, dilations = _per_axis(node.integers("strides"), rank, 1), _per_axis(node.integers("dilations"), rank, 1)
    pads = node.integers("pads") or (0,)
    has_both_ends = len(pads) == 2 * rank  # ONNX: the starts of all axes, then the ends; PyTorch: one number for both
    before, after = (pads[:rank], pads[rank:]) if has_both_ends else (_per_axis(pads, rank, 0),) * 2
    shape = graph.tensors[node.outputs[0]].shape
    channels = shape[1] if len(shape) > 1 else 0
    return (
        *_pair(strides), *_pair(before), *_pair(after), *_pair(dilations), node.integer("group", 1), channels,
        *_pair(kernel),
    )  # fmt: skip


def _per_axis(values: Sequence[int] | None, rank: int, default: int) -> Sequence[int]:
    """One number for each axis; a single number is repeated."""
    values = values or (default,)
    return tuple(values) * rank if len(values) == 1 else values


def _pair(values: Sequence[int]) -> tuple[int, int]:
    return (values[-2], values[-1]) if len(values) > 1 else (values[0], 0) if values else (0, 0)


def _first_activation(graph: Graph, node: Node) -> Tensor | None:
    """The first input that is not a parameter."""
    read = (graph.tensors[name] for name in node.inputs if name)
    return next((tensor for tensor in read if tensor.kind != "parameter"), None)


def _first_output(graph: Graph, node: Node) -> Tensor | None:
    return next((graph.tensors[name] for name in node.outputs if name), None)


def _shape(tensor: Tensor | None) -> tuple[int, ...]:
    """Six axes, filled with zeros; the last one holds the product of all further ones."""
    shape = tensor.shape if tensor is not None else ()
    if len(shape) > AXES:
        last = 1
        for size in shape[AXES - 1 :]:
            last *= size
        return (*shape[: AXES - 1], last)
    return (*shape, *(0,) * (AXES - len(shape)))


def _sizes(
    workload: Workload, table: CostTable, nodes: Sequence[Node], classes: Sequence[int], edges: NDArray[np.int64]
) -> tuple[float, ...]:
    total, graph = table.total, workload.graph
    first = graph.tensors[graph.inputs[0]].shape if graph.inputs else ()
    return (
        workload.batch_size,
        len(nodes),
        edges.shape[1],
        total.macs,
        total.parameters,
        total.activation_bytes + total.parameter_bytes,
        sum(node.op in _CONVOLUTIONS for node in nodes),
        classes.count(CLASSES.index("dense")),
        sum(node.op == "Relu" for node in nodes),
        first[-1] if first else 1,
    )


def _target(workload: Workload) -> tuple[float, ...]:
    """The target vector, the same for all networks: number format, mode, and the hardware of the slice."""
    hardware = workload.target.hardware
    mode = f"training-{workload.optimizer or 'sgd'}" if workload.is_training else "inference"
    number = workload.dtype if workload.dtype in ("fp64", "fp32", "bf16", "fp16", "fp8", "fp4", "int8") else "fp32"
    return (
        *(float(workload.dtype == name) for name in TARGET_COLUMNS[:3]),
        *(float(mode == name) for name in TARGET_COLUMNS[3:6]),
        hardware.sm_fraction,
        hardware.bandwidth_gb_per_s,
        hardware.peak_tflops(number, tensor_cores=True),
    )
