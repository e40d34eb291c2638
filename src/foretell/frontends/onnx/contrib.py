"""Frontends: the contrib operators that ONNX Runtime's optimiser writes: their names in the graph, and their shapes.

ONNX itself does not define these operators, so its shape inference does not know them.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto

from foretell.frozen import dataclass
from foretell.graph.ir.operators import OPERATORS

Known = tuple[tuple[int, ...], int]  # shape, ONNX element type
# shape inference of a node; the mapping gives some inputs another shape or type than they have
Infer = Callable[[NodeProto, Mapping[str, Known]], dict[str, Known] | None]

STANDARD = ("", "ai.onnx")
CONTRIB, BLOCKED = "com.microsoft", "com.microsoft.nchwc"
_RENAMED = {"Swish": "Silu", "SpatialBN": "BatchNormalization"}
_CONTRIB = {
    **{
        name: name
        for name in [
            "Gelu",
            "FastGelu",
            "BiasGelu",
            "QuickGelu",
            "BiasSplitGelu",
            "SkipLayerNormalization",
            "SimplifiedLayerNormalization",
            "Inverse",
            "Trilu",
            "Unique",
            "SkipSimplifiedLayerNormalization",
            "EmbedLayerNormalization",
            "RotaryEmbedding",
            "QLinearAdd",
            "QLinearMul",
            "QLinearLeakyRelu",
            "QLinearSigmoid",
            "QLinearSoftmax",
            "QLinearConcat",
            "QLinearAveragePool",
            "QLinearGlobalAveragePool",
            "QLinearConv",
            "FusedConv",
            "QGemm",
            "FusedMatMul",
            "FusedGemm",
            "TransposeMatMul",
            "MatMulNBits",
            "MatMulIntegerToFloat",
            "DynamicQuantizeMatMul",
            "MultiHeadAttention",
            "GroupQueryAttention",
            "QuantizeLinear",
            "DequantizeLinear",
            "GridSample",
            "Pad",
            "Range",
            "LayerNormalization",
            "MoE",
        ]
    },
    "Attention": "ContribAttention",
    "BiasSoftmax": "Softmax",
    "BiasAdd": "Add",
    "GroupNorm": "GroupNormalization",
    "SkipGroupNorm": "GroupNormalization",
    "NhwcMaxPool": "MaxPool",
    "ConvTransposeWithDynamicPads": "ConvTranspose",
    "DynamicQuantizeLSTM": "LSTM",
    "ComplexMul": "Mul",
    "MatMulInteger16": "MatMulInteger",
    "ReduceSumInteger": "ReduceSum",
    "QLinearReduceMean": "ReduceMean",
    "QLinearWhere": "Where",
    "ScaledTanh": "Tanh",
}
_BLOCKED = {
    "Conv": "FusedConv",
    "MaxPool": "MaxPool",
    "AveragePool": "AveragePool",
    "GlobalMaxPool": "GlobalMaxPool",
    "GlobalAveragePool": "GlobalAveragePool",
    "ReorderInput": "Copy",
    "ReorderOutput": "Copy",
    "Upsample": "Resize",
}


def canonical_name(node: NodeProto) -> str | None:
    """Return the graph's name of an operator; None if it is unknown.

    >>> from onnx import helper
    >>> canonical_name(helper.make_node("Attention", [], [], domain="com.microsoft"))
    'ContribAttention'
    """
    if node.domain in STANDARD:
        name = _RENAMED.get(node.op_type, node.op_type)
        return name if name in OPERATORS else None
    if node.domain == CONTRIB:
        return _CONTRIB.get(node.op_type)
    return _BLOCKED.get(node.op_type) if node.domain == BLOCKED else None


_LIKE_FIRST = frozenset(
    [
        "Gelu",
        "FastGelu",
        "BiasGelu",
        "QuickGelu",
        "SimplifiedLayerNormalization",
        "RotaryEmbedding",
        "QLinearSigmoid",
        "QLinearLeakyRelu",
        "QLinearSoftmax",
        "BiasSoftmax",
        "BiasAdd",
        "GroupNorm",
        "SkipGroupNorm",
        "Inverse",
        "Trilu",
        "ScaledTanh",
        "MoE",
    ]
)
_PRODUCTS = frozenset(
    [
        "FusedMatMul",
        "TransposeMatMul",
        "FusedGemm",
        "MatMulNBits",
        "MatMulIntegerToFloat",
        "DynamicQuantizeMatMul",
        "QGemm",
    ]
)
_STANDARD_FORM = {
    "FusedConv": "Conv", "Conv": "Conv", "QLinearAveragePool": "AveragePool",
    "QLinearGlobalAveragePool": "GlobalAveragePool",
    "NhwcMaxPool": "MaxPool", "MaxPool": "MaxPool", "AveragePool": "AveragePool",
    "GlobalAveragePool": "GlobalAveragePool",
    "GlobalMaxPool": "GlobalMaxPool", "Pad": "Pad", "Range": "Range", "GridSample": "GridSample",
}  # fmt: skip
_STANDARD_ATTRIBUTES = frozenset(
    [
        "kernel_shape",
        "strides",
        "pads",
        "dilations",
        "group",
        "auto_pad",
        "ceil_mode",
        "count_include_pad",
        "storage_order",
        "mode",
    ]
)


@dataclass(frozen=True)
class _Call:
    """One node: its attributes, and the shapes and types of its inputs."""

    attributes: Mapping[str, Any]
    operands: tuple[Known | None, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.shape_of(0)

    @property
    def kind(self) -> int:
        return self.kind_of(0, TensorProto.FLOAT)

    def has(self, position: int) -> bool:
        return position < len(self.operands) and self.operands[position] is not None

    def shape_of(self, position: int) -> tuple[int, ...]:
        operand = self.operands[position] if position < len(self.operands) else None
        if operand is None:
            raise ValueError(f"input {position} is absent")
        return operand[0]

    def kind_of(self, position: int, otherwise: int) -> int:
        operand = self.operands[position] if position < len(self.operands) else None
        return operand[1] if operand else int(otherwise)


def contrib_shapes(
    node: NodeProto, attributes: Mapping[str, Any], known: Mapping[str, Known], infer: Infer
) -> dict[str, Known] | None:
    """Return the shapes and element types of a contrib operator's outputs; None if there is no rule for it."""
    call = _Call(attributes, tuple(known.get(i) if i else None for i in node.input))
    if not call.has(0):
        return None
    if node.op_type in _LIKE_FIRST:
        return {node.output[0]: (call.shape, call.kind)}
    if node.op_type in _PRODUCTS:
        return {node.output[0]: (_product(node.op_type, call), _product_type(node.op_type, call))}
    if node.op_type in _STANDARD_FORM:
        return _by_standard_form(node, call, infer)
    rule = _RULES.get(node.op_type)
    return dict(zip(node.output, rule(call))) if rule is not None else None


def _product(op: str, call: _Call) -> tuple[int, ...]:
    """The shape of a matrix product."""
    left, attributes = call.shape, call.attributes
    if op == "MatMulNBits":
        return (*left[:-1], int(attributes["N"]))
    right = call.shape_of(3 if op == "QGemm" else 1)
    rows = left[-1] if attributes.get("transA") else left[-2] if len(left) > 1 else 1
    columns = right[-2] if attributes.get("transB") else right[-1]
    return (*np.broadcast_shapes(left[:-2], right[:-2]), rows, columns)


def _product_type(op: str, call: _Call) -> int:
    if op == "MatMulIntegerToFloat":
        return call.kind_of(2, TensorProto.FLOAT)
    return int(TensorProto.FLOAT) if op == "QGemm" and not call.has(8) else call.kind


def _by_standard_form(node: NodeProto, call: _Call, infer: Infer) -> dict[str, Known] | None:
    """Let ONNX infer the shape of the standard operator that this one is a variant of.

    A channels-last variant is described with channels first for that, and its result is turned back.
    """
    standard = NodeProto(op_type=_STANDARD_FORM[node.op_type], output=node.output[:1])
    all_inputs = standard.op_type in ("Pad", "Range", "GridSample")
    standard.input.extend(node.input if all_inputs else node.input[: 3 if standard.op_type == "Conv" else 1])
    standard.attribute.extend(a for a in node.attribute if a.name in _STANDARD_ATTRIBUTES)
    is_channels_last = node.op_type == "NhwcMaxPool" or bool(call.attributes.get("channels_last"))
    # most standard operators do not take 8-bit integers: infer with floats, then restore the type
    quantised = call.kind in (TensorProto.UINT8, TensorProto.INT8)
    described = (
        _channels_first(call.shape) if is_channels_last else call.shape,
        int(TensorProto.FLOAT) if quantised else call.kind,
    )
    inferred = infer(standard, {node.input[0]: described})
    if not inferred or node.output[0] not in inferred:
        return None
    out = inferred[node.output[0]][0]
    return {node.output[0]: (_channels_last(out) if is_channels_last else out, call.kind)}


def _channels_first(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0], shape[-1], *shape[1:-1])


def _channels_last(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0], *shape[2:], shape[1])


def _broadcast(call: _Call) -> list[Known]:
    return [(np.broadcast_shapes(call.shape, call.shape_of(3)), call.kind)]


def _concatenated(call: _Call) -> list[Known]:
    # after the output's scale and zero point come triples of tensor, scale and zero point
    pieces = [call.shape_of(i) for i in range(2, len(call.operands), 3)]
    joined, axis = list(pieces[0]), int(call.attributes["axis"])
    joined[axis] = sum(p[axis] for p in pieces)
    return [(tuple(joined), call.kind_of(2, TensorProto.UINT8))]


def _skip_norm(call: _Call) -> list[Known]:
    statistics = ((*call.shape[:-1], 1), int(TensorProto.FLOAT))
    return [(call.shape, call.kind), statistics, statistics, (call.shape, call.kind)]


def _embedding_norm(call: _Call) -> list[Known]:
    full = ((*call.shape, call.shape_of(2)[-1]), call.kind_of(2, TensorProto.FLOAT))
    return [full, (call.shape[:1], int(TensorProto.INT32)), full]


def _attention(call: _Call) -> list[Known]:
    """com.microsoft.Attention: an input (batch, tokens, width), and one weight for queries, keys and values."""
    shape, sizes, heads = call.shape, call.attributes.get("qkv_hidden_sizes"), int(call.attributes.get("num_heads", 1))
    width = int(sizes[2]) if sizes else call.shape_of(1)[-1] // 3
    tokens = shape[1] + (call.shape_of(4)[3] if call.has(4) else 0)
    return [((*shape[:-1], width), call.kind), ((2, shape[0], heads, tokens, width // heads), call.kind)]


def _multi_head(call: _Call) -> list[Known]:
    shape = call.shape
    if len(shape) == 5:  # packed: (batch, tokens, heads, 3, head size)
        return [((shape[0], shape[1], shape[2] * shape[4]), call.kind)]
    value = call.shape_of(2) if call.has(2) else shape
    width = value[-1] if len(value) == 3 else value[1] * value[3]
    return [((shape[0], shape[1], width), call.kind)]


def _group_query(call: _Call) -> list[Known]:
    shape, heads, groups = call.shape, int(call.attributes["num_heads"]), int(call.attributes["kv_num_heads"])
    # without separate keys, queries, keys and values are packed side by side
    size = shape[-1] // (heads if call.has(1) else heads + 2 * groups)
    tokens = shape[1] + (call.shape_of(3)[2] if call.has(3) else 0)
    cache = ((shape[0], groups, tokens, size), call.kind)
    return [((*shape[:-1], heads * size), call.kind), cache, cache]


def _quantised(call: _Call) -> list[Known]:
    return [(call.shape, call.kind_of(2, TensorProto.UINT8))]


def _dequantised(call: _Call) -> list[Known]:
    return [(call.shape, call.kind_of(1, TensorProto.FLOAT))]


def _reordered(call: _Call) -> list[Known]:
    """Into the blocked layout and back. Between the two, shapes are noted as if they were channels-first."""
    shape, is_channels_last = call.shape, bool(call.attributes.get("channels_last"))
    if "channels" in call.attributes:
        out = (shape[0], int(call.attributes["channels"]), *shape[2:])
        return [(_channels_last(out) if is_channels_last else out, call.kind)]
    return [(_channels_first(shape) if is_channels_last else shape, call.kind)]


def _upsampled(call: _Call) -> list[Known]:
    return [(tuple(d * int(s) for d, s in zip(call.shape, call.attributes["scales"])), call.kind)]


def _convolved(call: _Call) -> list[Known]:
    """A quantised convolution, channels first or last; its weight has its channels first in both cases."""
    weight, is_channels_last, attributes = call.shape_of(3), bool(call.attributes.get("channels_last")), call.attributes
    sides = call.shape[1:-1] if is_channels_last else call.shape[2:]
    rank = len(sides)
    strides, dilations = attributes.get("strides") or [1] * rank, attributes.get("dilations") or [1] * rank
    pads = attributes.get("pads") or [0] * 2 * rank
    same = str(attributes.get("auto_pad", "NOTSET")).startswith("SAME")
    out = []
    for i, side in enumerate(sides):
        extent = (weight[2 + i] - 1) * dilations[i] + 1
        out.append(-(-side // strides[i]) if same else (side + pads[i] + pads[i + rank] - extent) // strides[i] + 1)
    shape = (call.shape[0], weight[0], *out)
    return [(_channels_last(shape) if is_channels_last else shape, call.kind)]


def _lstm(call: _Call) -> list[Known]:
    shape, width = call.shape, int(call.attributes["hidden_size"])
    directions = 2 if call.attributes.get("direction") == "bidirectional" else 1
    state = ((directions, shape[1], width), call.kind)
    return [((shape[0], directions, shape[1], width), call.kind), state, state]


_RULES: dict[str, Callable[[_Call], list[Known]]] = {
    "QLinearAdd": _broadcast,
    "QLinearMul": _broadcast,
    "QLinearConcat": _concatenated,
    "QLinearConv": _convolved,
    "SkipLayerNormalization": _skip_norm,
    "SkipSimplifiedLayerNormalization": _skip_norm,
    "EmbedLayerNormalization": _embedding_norm,
    "Attention": _attention,
    "MultiHeadAttention": _multi_head,
    "GroupQueryAttention": _group_query,
    "QuantizeLinear": _quantised,
    "DequantizeLinear": _dequantised,
    "ReorderInput": _reordered,
    "ReorderOutput": _reordered,
    "Upsample": _upsampled,
    "DynamicQuantizeLSTM": _lstm,
}
