"""Predictors: the kernels of a model under TorchInductor, each with a base time and the columns of its factor.

A library kernel (product, convolution, attention, recurrent layer) has as base time its time in eager mode, and so has
an operator that Inductor generates no code for (a Fourier transform, a sort, complex numbers). A kernel that Inductor
generates has two rows: its memory traffic at the peak bandwidth, where every tensor is read or written once, and one
launch. Both base times are multiplied by a factor, the exponential of a weighted sum of a few columns
(`foretell.predictors.compiled.model`). Which nodes Inductor fuses into one kernel is an argument
(`foretell.predictors.fusion.partitioner` predicts it).

Limits: generated kernels are taken to be bound by memory; a kernel that computes a lot for each byte is too fast here.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretell.features.units import COLUMNS, KINDS, SCHEMA, Units
from foretell.graph import CostTable, Graph, graph_costs
from foretell.graph.ir.layout import layouts
from foretell.graph.ir.node import Node
from foretell.graph.ir.operators import lookup
from foretell.graph.ir.tensor import DTYPE_BITS, Tensor
from foretell.predictors.compiled.inductor import CONVOLUTIONS, is_channels_last, is_decomposed, is_fallback, is_padded
from foretell.records import Workload
from foretell.units import bytes_per_s, us

GENERATED = "generated"
LIBRARY_KINDS = ("contraction", "attention", "recurrent")
COMPILED_COLUMNS = (
    # a convolution with channels last
    "convolution", "convolution_compute", "convolution_traffic", "convolution_1d", "convolution_3d",
    "convolution_point", "convolution_alignment", "convolution_strided", "grouped",
    "depthwise", "depthwise_alignment", "depthwise_kernel", "depthwise_time", "depthwise_odd",
    # a convolution as in eager mode, attention, a recurrent layer
    "plain_convolution", "attention", "attention_half", "attention_composed", "recurrent",
    # any other product
    "product", "product_exact", "product_alignment", "product_small", "product_strided",
    # the traffic of a generated kernel, and its launch
    "traffic", "traffic_gathered", "traffic_half", "traffic_nodes", "traffic_reduced", "traffic_transposed",
    "traffic_window", "launch",
)  # fmt: skip
COMPILED_SCHEMA = hashlib.sha256("|".join((SCHEMA, *COMPILED_COLUMNS)).encode()).hexdigest()[:16]
_PLACE = {name: position for position, name in enumerate(COMPILED_COLUMNS)}
_AT = {name: position for position, name in enumerate(COLUMNS)}
_EXACT_BYTES = DTYPE_BITS["fp32"] // 8
_USUAL_US = math.exp(2.5)  # centres a logarithm: about the typical time of a depthwise convolution
_SMALL, _ALIGNED = 5, 3  # log2 of 32 and of 8
_MIN_US = 1e-4
_TRANSPOSING = ("Transpose", "Contiguous")
_IN_TWO_PASSES = ("GroupNormalization", "InstanceNormalization")

Values = NDArray[np.float64]


@dataclass(frozen=True)
class CompiledKernels:
    """Rows of kernels: base time, columns, and operator; a generated kernel has two rows."""

    base_us: Values
    columns: Values
    operators: tuple[str, ...]

    @property
    def is_library(self) -> NDArray[np.bool_]:
        """Which rows are calls of a library."""
        return np.array([name != GENERATED for name in self.operators], bool)

    def __len__(self) -> int:
        return len(self.base_us)


@dataclass(frozen=True)
class Traffic:
    """The bytes that a generated kernel moves, its nodes, the largest pooling window, and what it does besides."""

    bytes: float
    nodes: int = 1
    window: int = 0
    reduces: bool = False
    gathers: bool = False
    transposes: bool = False


def describe_compiled(
    workload: Workload, parts: Sequence[Sequence[int]], lowered: Graph, units: Units, unit_us: Values
) -> CompiledKernels:
    """All kernels of a workload; ``units`` are those of ``lowered``, the graph that `inductor.lower` made."""
    half, channels_last = workload.dtype != "fp32", is_channels_last(workload.graph)
    base_us, rows, operators = list[float](), list[Mapping[str, float]](), list[str]()
    for position, nodes in enumerate(units.nodes):
        node = library_node(lowered, nodes)
        if node is not None:
            time_us = float(unit_us[position])
            base_us.append(time_us)
            rows.append(_library(node, units.features[position], time_us, half=half, channels_last=channels_last))
            operators.append(units.operators[position])
    library = CompiledKernels(np.array(base_us), _matrix(rows), tuple(operators))
    bandwidth = bytes_per_s(workload.target.hardware.bandwidth_gb_per_s)
    # a model that lies channels-last already is not copied
    traffic = generated(workload.graph, parts, channels_last=channels_last and not workload.channels_last)
    own = describe_generated(traffic, half=half, bandwidth=bandwidth)
    return CompiledKernels(
        np.concatenate([library.base_us, own.base_us]),
        np.concatenate([library.columns, own.columns]),
        (*library.operators, *own.operators),
    )


def library_node(graph: Graph, nodes: Sequence[int]) -> Node | None:
    """The node of a unit that a library computes, or None."""
    return next((graph.nodes[member] for member in nodes if _is_library(graph, graph.nodes[member])), None)


def _is_library(graph: Graph, node: Node) -> bool:
    return _kind(node) in LIBRARY_KINDS or is_fallback(graph, node)


def describe_generated(kernels: Sequence[Traffic], *, half: bool, bandwidth: float) -> CompiledKernels:
    """Generated kernels, two rows each; ``bandwidth`` is in bytes a second."""
    base_us, rows = list[float](), list[Mapping[str, float]]()
    for kernel in kernels:
        # the launch has the base time 1 µs: its fitted factor is the cost in microseconds
        base_us += [max(us(kernel.bytes / bandwidth), _MIN_US), 1.0]
        rows += [_generated(kernel, half=half), {"launch": 1.0}]
    return CompiledKernels(np.array(base_us), _matrix(rows), (GENERATED,) * len(rows))


def _matrix(rows: Sequence[Mapping[str, float]]) -> Values:
    columns = np.zeros((len(rows), len(COMPILED_COLUMNS)))
    for position, row in enumerate(rows):
        for name, value in row.items():
            columns[position, _PLACE[name]] = value
    return columns


def _kind(node: Node) -> str:
    return lookup(node.op, node.domain).kind


def _library(
    node: Node, features: NDArray[np.float32], time_us: float, *, half: bool, channels_last: bool
) -> dict[str, float]:
    """The columns of a library kernel."""
    column = {name: float(features[position]) for name, position in _AT.items()}
    kind = _kind(node)
    if kind not in LIBRARY_KINDS:
        return {}  # as long as in eager mode
    if kind == "recurrent":
        return {"recurrent": 1.0}
    if kind == "attention":
        return {"attention": 1.0, "attention_half": half, "attention_composed": column["fused"] < 1}
    if node.op not in CONVOLUTIONS:
        # a product that stays in single precision although the model is in half precision
        exact = half and KINDS[int(column["kind"])] == "contraction" and column["dtype"] == 0
        if exact:
            return {"product": 1.0, "product_exact": 1.0}
        return {
            "product": 1.0,
            "product_alignment": half * min(column["n_alignment"] - _ALIGNED, 0.0),
            "product_small": min(column["log_n"], column["log_k"]) < _SMALL,
            "product_strided": column["strided_inputs"] > 0,
        }
    if not channels_last:
        return {"plain_convolution": 1.0}
    alignment, in_groups = column["k_alignment"] - _ALIGNED, column["groups"] > 1
    shared = {
        "convolution": 1.0,
        "convolution_1d": column["dims"] == 1,
        "convolution_3d": column["dims"] == 3,
        "convolution_point": column["kernel"] == 1,
        "convolution_alignment": alignment,
        "convolution_strided": column["stride"] > 1,
    }
    if in_groups and column["group_inputs"] == 1:
        odd = column["dilation"] > 1 or column["kernel"] != column["kernel_last"]
        return shared | {
            "depthwise": 1.0,
            "depthwise_alignment": half * alignment,
            "depthwise_kernel": math.log(max(column["kernel"], 1.0)) - 1.0,
            "depthwise_time": math.log(time_us / _USUAL_US),
            "depthwise_odd": odd,
        }
    return shared | {
        "grouped": in_groups,
        "convolution_compute": (column["log_compute_us"] - math.log2(time_us)) * math.log(2),
        "convolution_traffic": (column["log_memory_us"] - math.log2(time_us)) * math.log(2),
    }


def _generated(kernel: Traffic, *, half: bool) -> dict[str, float]:
    """The columns of a generated kernel."""
    return {
        "traffic": 1.0,
        "traffic_half": half,
        "traffic_gathered": kernel.gathers,
        "traffic_nodes": math.log(kernel.nodes) / 2,
        "traffic_reduced": kernel.reduces,
        "traffic_transposed": kernel.transposes,
        "traffic_window": 1.0 + math.log(kernel.window) if kernel.window else 0.0,
    }


def generated(graph: Graph, parts: Sequence[Sequence[int]], *, channels_last: bool) -> list[Traffic]:
    """The kernels that Inductor generates: one for each part of the graph, and copies that its own choices add."""
    table, tensor_layouts = graph_costs(graph), layouts(graph)
    generated_nodes = {
        position
        # one call of the framework may be several nodes: if one of them is a library's, all are
        for group in _origins(graph)
        if not any(_is_library(graph, graph.nodes[position]) for position in group)
        for position in group
    }
    kernels, read = list[Traffic](), set[str]()
    for part in parts:
        own = [position for position in part if position in generated_nodes]
        if any(table.nodes[position].launches for position in own):
            kernels.append(_part(graph, table, own))
            read |= {tensor_layouts[name].storage for member in own for name in graph.nodes[member].inputs if name}
    for node in graph.nodes:
        fused = any(tensor_layouts[name].storage in read for name in node.outputs if name)
        kernels += _added(graph, node, channels_last=channels_last, fused=fused)
    # the input arrives with channels first and is copied once
    image = next((graph.tensors[name] for name in graph.inputs if len(graph.tensors[name].shape) == 4), None)
    return [*kernels, _copy(image)] if channels_last and image is not None else kernels


def _origins(graph: Graph) -> list[list[int]]:
    """Groups of nodes that one operator of the framework became."""
    members: dict[str, list[int]] = {}
    for position, node in enumerate(graph.nodes):
        members.setdefault(node.origin or f"\0{position}", []).append(position)
    return list(members.values())


def _part(graph: Graph, table: CostTable, own: Sequence[int]) -> Traffic:
    """One kernel of several nodes: each storage is read once, and written if another kernel reads it."""
    tensor_layouts, inside = layouts(graph), set(own)
    nodes = [graph.nodes[position] for position in own]
    produced = {name for node in nodes for name in node.outputs if name}
    reads: dict[str, int] = {}
    for position, node in zip(own, nodes, strict=True):
        for name in dict.fromkeys(node.inputs):
            if name and name not in produced:
                size, storage = graph.tensors[name].bytes, tensor_layouts[name].storage
                reads[storage] = max(reads.get(storage, 0), min(size, table.nodes[position].bytes_read or size))
    leaving = {
        tensor_layouts[name].storage
        for name in produced
        if name in graph.outputs or any(reader not in inside for reader in graph.consumers.get(name, ()))
    }
    moved_bytes = sum(reads.values()) + sum(graph.tensors[name].bytes for name in leaving & produced)
    working_kinds = {_kind(graph.nodes[position]) for position in own if table.nodes[position].launches}
    windows = [math.prod(node.integers("kernel_shape") or (1,)) for node in nodes if _kind(node) == "pooling"]
    return Traffic(
        moved_bytes,
        len(own),
        max(windows, default=0),
        any(_kind(node) in ("normalisation", "reduction") and node.op != "BatchNormalization" for node in nodes),
        bool(working_kinds & {"gather", "scatter"}),
        any(node.op in _TRANSPOSING for node in nodes),
    )


def _added(graph: Graph, node: Node, *, channels_last: bool, fused: bool) -> Iterator[Traffic]:
    """The kernels that no node stands for; ``fused`` says that a generated kernel reads the node's result."""
    inputs = [graph.tensors[name] for name in node.inputs if name]
    if node.op in CONVOLUTIONS:
        shape = inputs[1].shape
        if channels_last and len(shape) == 4 and math.prod(shape[2:]) > 1 and shape[1] > 1:
            yield _copy(inputs[1])
        # a bias that no generated kernel can take up costs a kernel of its own
        if len(inputs) > 2 and not fused:
            yield _copy(graph.tensors[node.outputs[0]])
    # statistics over a whole image do not fit into one block: a pass for partial sums, and small ones to combine them
    elif node.op in _IN_TWO_PASSES:
        yield Traffic(inputs[0].bytes, reduces=True)
        yield from (Traffic(1.0), Traffic(1.0))
    elif is_padded(graph, node):
        yield _copy(inputs[1])
    elif is_decomposed(graph, node):
        query, key, value = inputs[:3]
        for tensor in (query, key, value, query):
            yield Traffic(tensor.bytes + tensor.elements * _EXACT_BYTES)
        yield Traffic(2 * math.prod(query.shape[:3]) * key.shape[2] * _EXACT_BYTES, reduces=True)


def _copy(tensor: Tensor) -> Traffic:
    return Traffic(2 * tensor.bytes)
