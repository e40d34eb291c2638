"""Lab: LILOU features: what LILOU (Q. Liang, H. Wang, P. Shenoy) knows of a node (its Table 1) and a device (Table 2).

A node has its operator, the sizes of its inputs, outputs and parameters, and its FLOPs. They are logarithms here,
because they span nine orders of magnitude. LILOU has one precision and one batch size; here the type of the output is
added, and where a runtime decides by the graph alone, sizes are those of one item of the batch. A device has its
compute capability, clock, and the cores and SMs of the slice. The catalogue has the bandwidth instead of bus width and
memory clock, whose product it is; the L2 cache is added.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretell.devices import Hardware
from foretell.features.operator_codes import CODED, operator_code
from foretell.features.units import COLUMNS, DTYPES
from foretell.graph import Graph, graph_costs
from foretell.graph.ir.tensor import DTYPE_BITS, Tensor
from foretell.units import GIGA, MEGA, TERA

SIZES = ("log_inputs", "log_outputs", "log_parameters", "log_flops")
DEVICE_COLUMNS = ("compute_capability", "bandwidth_gb_per_s", "l2_mib", "cores", "sms", "clock_ghz")
UNKNOWN = len(CODED)  # the code of operators without one: the last of the one-hot
OPERATOR_CODES, DTYPE_CODES = UNKNOWN + 1, len(DTYPES) + 1
_AT = {name: position for position, name in enumerate(COLUMNS)}
_BYTES = np.array(
    [*(DTYPE_BITS[name] // 8 for name in DTYPES), 4.0]
)  # the last entry, for types without a code, is that of fp32
_FLOPS_PER_CYCLE = 2  # of one core: a multiplication and an addition


@dataclass(frozen=True)
class NodeTable:
    """One row for each node: the code of its operator, of the type of its output, and `SIZES`."""

    operators: NDArray[np.int16]
    dtypes: NDArray[np.int8]
    sizes: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.operators)

    def of(self, rows: NDArray[np.intp]) -> "NodeTable":
        """Some of the rows."""
        return NodeTable(self.operators[rows], self.dtypes[rows], self.sizes[rows])

    def distinct(self) -> tuple["NodeTable", NDArray[np.intp]]:
        """The distinct rows, and for each row its position among them; layers repeat."""
        columns = (self.operators, self.dtypes, *self.sizes.T)
        table = np.ascontiguousarray(np.stack([column.astype(np.float32) for column in columns], axis=1))
        # each row viewed as one opaque value, which `np.unique` can sort
        rows = table.view(np.dtype((np.void, table.dtype.itemsize * table.shape[1])))[:, 0]
        _, first, inverse = np.unique(rows, return_index=True, return_inverse=True)
        return self.of(first), inverse.astype(np.intp)


def describe_nodes(graph: Graph, *, per_item: bool = True) -> NodeTable:
    """The nodes of a graph; sizes are those of one item of its batch, or of the whole batch.

    >>> from foretell.testing import tiny_graph
    >>> table = describe_nodes(tiny_graph())
    >>> len(table) == len(tiny_graph().nodes), table.sizes.shape[1] == len(SIZES)
    (True, True)
    """
    costs, rows, operators, dtypes = graph_costs(graph).nodes, [], [], []
    batch = graph.batch_size if per_item else 1
    for node, cost in zip(graph.nodes, costs, strict=True):
        inputs = [graph.tensors[name] for name in node.inputs if name]
        outputs = [graph.tensors[name] for name in node.outputs if name]
        activations = [tensor for tensor in inputs if tensor.kind in ("activation", "input")]
        items = batch if any(tensor.batch_axis is not None for tensor in outputs) else 1
        parameters = sum(tensor.elements for tensor in inputs if tensor.kind not in ("activation", "input"))
        rows.append((_items(activations, batch), _items(outputs, batch), parameters, cost.flops / items))
        code = operator_code(node.op)
        operators.append(UNKNOWN if code < 0 else code)
        dtypes.append(DTYPES.index(outputs[0].dtype) if outputs and outputs[0].dtype in DTYPES else len(DTYPES))
    sizes = np.log2(1.0 + np.array(rows, np.float64).reshape(-1, len(SIZES)))
    return NodeTable(np.array(operators, np.int16), np.array(dtypes, np.int8), sizes.astype(np.float32))


def _items(tensors: list[Tensor], batch: int) -> float:
    return sum(tensor.elements / (1 if tensor.batch_axis is None else batch) for tensor in tensors)


def describe_units(features: NDArray[np.float32]) -> NodeTable:
    """Rows of `foretell.features.COLUMNS` as nodes: in eager mode a unit is one node; sizes are of the whole batch."""

    def bytes_of(name: str) -> NDArray[np.float64]:
        return np.asarray(np.exp2(features[:, _AT[name]].astype(np.float64)) - 1.0)

    dtypes = features[:, _AT["dtype"]].astype(np.int8)
    dtypes = np.where(dtypes < 0, len(DTYPES), dtypes).astype(np.int8)
    operators = features[:, _AT["operator"]].astype(np.int16)
    width, parameters = _BYTES[dtypes], bytes_of("log_parameter_bytes")
    input_elements = np.maximum(bytes_of("log_read_bytes") - parameters, 0.0) / width
    output_elements = bytes_of("log_written_bytes") / width
    logs = [np.log2(1.0 + np.round(values)) for values in (input_elements, output_elements, parameters / width)]
    return NodeTable(
        np.where(operators < 0, UNKNOWN, operators).astype(np.int16),
        dtypes,
        np.stack([*logs, features[:, _AT["log_flops"]]], axis=1).astype(np.float32),
    )


def describe_device(hardware: Hardware) -> NDArray[np.float32]:
    """The features of a device or its slice, in the order of `DEVICE_COLUMNS`; 0 where the catalogue has none.

    >>> from foretell.devices import effective, find_device
    >>> describe_device(effective(find_device("h200"))).tolist()[3:5]
    [16894.0, 132.0]
    """
    device = hardware.device
    clock_ghz = (device.boost_clock_mhz or 0.0) * MEGA / GIGA
    flops = hardware.peak_tflops("fp32", tensor_cores=False) * TERA
    # the catalogue has no number of cores: derive it from the fp32 peak and the clock
    cores = round(flops / (_FLOPS_PER_CYCLE * clock_ghz * GIGA)) if clock_ghz else 0
    capability = float(device.compute_capability or 0.0)
    facts = (capability, hardware.bandwidth_gb_per_s, hardware.l2_mib, cores, hardware.sms, clock_ghz)
    return np.array(facts, np.float32)
