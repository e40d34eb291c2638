"""frontends: operators that ONNX itself does not define: what ONNX Runtime's optimiser writes, and their shapes."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto

from foretell.graph.ops import OPERATORS

Known = tuple[tuple[int, ...], int]  # shape, ONNX element type
Infer = Callable[[NodeProto, Mapping[str, Known]], dict[str, Known] | None]  # with inputs taken for others

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
    """The graph's name of an operator, None where it is not known.

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
_AS_PLAIN = {
    "FusedConv": "Conv", "Conv": "Conv", "QLinearAveragePool": "AveragePool", "QLinearGlobalAveragePool": "GlobalAveragePool",
    "NhwcMaxPool": "MaxPool", "MaxPool": "MaxPool", "AveragePool": "AveragePool", "GlobalAveragePool": "GlobalAveragePool",
    "GlobalMaxPool": "GlobalMaxPool", "Pad": "Pad", "Range": "Range", "GridSample": "GridSample",
}  # fmt: skip
_PLAIN_ATTRIBUTES = frozenset(
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


def contrib_shapes(
    node: NodeProto, attributes: Mapping[str, Any], known: Mapping[str, Known], infer: Infer
) -> dict[str, Known] | None:
    """Shapes and element types of a contrib operator's outputs, or None where no rule fits."""
    op = node.op_type
    operands = [known.get(i) if i else None for i in node.input]
    if not operands or operands[0] is None:
        return None
    shape, kind = operands[0]
    if op in _LIKE_FIRST:
        return {node.output[0]: (shape, kind)}
    if op in _PRODUCTS:
        return {node.output[0]: (_product(op, attributes, operands), _product_type(op, operands))}
    if op in _AS_PLAIN:
        return _as_plain(node, attributes, known, infer)
    rule = _RULES.get(op)
    shapes = rule(attributes, operands, shape, kind) if rule is not None else None
    if shapes is None:
        return None
    return {name: found for name, found in zip(node.output, shapes) if name and found is not None}


def _shape_of(operands: list[Known | None], position: int) -> tuple[int, ...]:
    found = operands[position] if position < len(operands) else None
    if found is None:
        raise ValueError(f"input {position} is absent")
    return found[0]


def _product(op: str, attributes: Mapping[str, Any], operands: list[Known | None]) -> tuple[int, ...]:
    left = _shape_of(operands, 0)
    if op == "MatMulNBits":
        return (*left[:-1], int(attributes["N"]))
    right = _shape_of(operands, 3 if op == "QGemm" else 1)
    rows = left[-1] if attributes.get("transA") else left[-2] if len(left) > 1 else 1
    columns = right[-2] if attributes.get("transB") else right[-1]
    return (*np.broadcast_shapes(left[:-2], right[:-2]), rows, columns)


def _product_type(op: str, operands: list[Known | None]) -> int:
    first = operands[0][1] if operands[0] else TensorProto.FLOAT
    if op == "MatMulIntegerToFloat":
        scale = operands[2] if len(operands) > 2 else None
        return scale[1] if scale else TensorProto.FLOAT
    if op == "QGemm":
        return first if len(operands) > 8 and operands[8] else TensorProto.FLOAT
    return first


def _as_plain(
    node: NodeProto, attributes: Mapping[str, Any], known: Mapping[str, Known], infer: Infer
) -> dict[str, Known] | None:
    """Ask ONNX about the operator that this one is a variant of; channels-last ones are turned around for that."""
    plain = NodeProto(op_type=_AS_PLAIN[node.op_type], output=node.output[:1])
    plain.input.extend(
        node.input
        if plain.op_type in ("Pad", "Range", "GridSample")
        else node.input[: 3 if plain.op_type == "Conv" else 1]
    )
    plain.attribute.extend(a for a in node.attribute if a.name in _PLAIN_ATTRIBUTES)
    shape, kind = known[node.input[0]]
    last = node.op_type == "NhwcMaxPool" or bool(attributes.get("channels_last"))
    quantised = kind in (TensorProto.UINT8, TensorProto.INT8)
    found = infer(plain, {node.input[0]: (_first(shape) if last else shape, TensorProto.FLOAT if quantised else kind)})
    if not found or node.output[0] not in found:
        return None
    out = found[node.output[0]][0]
    return {node.output[0]: (_last(out) if last else out, kind)}


def _first(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0], shape[-1], *shape[1:-1])


def _last(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0], *shape[2:], shape[1])


Rule = Callable[[Mapping[str, Any], list[Known | None], tuple[int, ...], int], list[Known | None] | None]


def _broadcast(
    attributes: Mapping[str, Any], operands: list[Known | None], shape: tuple[int, ...], kind: int
) -> list[Known | None]:
    return [(np.broadcast_shapes(shape, _shape_of(operands, 3)), kind)]


def _concatenated(
    attributes: Mapping[str, Any], operands: list[Known | None], shape: tuple[int, ...], kind: int
) -> list[Known | None]:
    pieces = [_shape_of(operands, i) for i in range(2, len(operands), 3)]
    joined, axis = list(pieces[0]), int(attributes["axis"])
    joined[axis] = sum(p[axis] for p in pieces)
    piece = operands[2]
    return [(tuple(joined), piece[1] if piece else kind)]


def _skipped(
    attributes: Mapping[str, Any], operands: list[Known | None], shape: tuple[int, ...], kind: int
) -> list[Known | None]:
    statistics = ((*shape[:-1], 1), int(TensorProto.FLOAT))
    return [(shape, kind), statistics, statistics, (shape, kind)]


def _embedded(
    attributes: Mapping[str, Any], operands: list[Known | None], shape: tuple[int, ...], kind: int
) -> list[Known | None]:
    words = operands[2] if len(operands) > 2 else None
    if words is None:
        raise ValueError("the embedding is absent")
    full = ((*shape, words[0][-1]), words[1])
    return [full, (shape[:1], int(TensorProto.INT32)), full]


def _attended(
    attributes: Mapping[str, Any], operands: list[Known | None], shape: tuple[int, ...], kind: int
) -> list[Known | None]:
    """com.microsoft.Attention: (batch, tokens, width) and one weight for queries, keys and values."""
    sizes, heads = attributes.get("qkv_hidden_sizes"), int(attributes.get("num_heads", 1))
    width = int(sizes[2]) if sizes else _shape_of(operands, 1)[-1] // 3
    past = operands[4] if len(operands) > 4 else None
    tokens = shape[1] + (past[0][3] if past else 0)
    return [((*shape[:-1], width), kind), ((2, shape[0], heads, tokens, width // heads), kind)]


def _multi_head(
    attributes: Mapping[str, Any], operands: list[Known | None], shape: tuple[int, ...], kind: int
) -> list[Known | None]:
    if len(shape) == 5:  # packed: (batch, tokens, heads, 3, head size)
        return [((shape[0], shape[1], shape[2] * shape[4]), kind)]
    value = operands[2][0] if len(operands) > 2 and operands[2] else shape
    width = value[-1] if len(value) == 3 else value[1] * value[3]
    return [((shape[0], shape[1], width), kind)]


def _grouped(
    attributes: Mapping[str, Any], operands: list[Known | None], shape: tuple[int, ...], kind: int
) -> list[Known | None]:
    heads, groups = int(attributes["num_heads"]), int(attributes["kv_num_heads"])
    packed = len(operands) < 2 or operands[1] is None
    size = shape[-1] // (heads + 2 * groups if packed else heads)
    past = operands[3] if len(operands) > 3 else None
    cache = ((shape[0], groups, shape[1] + (past[0][2] if past else 0), size), kind)
    return [((*shape[:-1], heads * size), kind), cache, cache]


def _quantised(
    attributes: Mapping[str, Any], operands: list[Known | None], shape: tuple[int, ...], kind: int
) -> list[Known | None]:
    zero = operands[2] if len(operands) > 2 else None
    return [(shape, zero[1] if zero else int(TensorProto.UINT8))]


def _dequantised(
    attributes: Mapping[str, Any], operands: list[Known | None], shape: tuple[int, ...], kind: int
) -> list[Known | None]:
    scale = operands[1] if len(operands) > 1 else None
    return [(shape, scale[1] if scale else int(TensorProto.FLOAT))]


def _reordered(
    attributes: Mapping[str, Any], operands: list[Known | None], shape: tuple[int, ...], kind: int
) -> list[Known | None]:
    """Into blocked channels, and out of them: the axes are counted as channels-first all the way."""
    if "channels" in attributes:
        out = (shape[0], int(attributes["channels"]), *shape[2:])
        return [(_last(out) if attributes.get("channels_last") else out, kind)]
    return [(_first(shape) if attributes.get("channels_last") else shape, kind)]


def _upsampled(
    attributes: Mapping[str, Any], operands: list[Known | None], shape: tuple[int, ...], kind: int
) -> list[Known | None]:
    return [(tuple(d * int(s) for d, s in zip(shape, attributes["scales"])), kind)]


def _convolved(
    attributes: Mapping[str, Any], operands: list[Known | None], shape: tuple[int, ...], kind: int
) -> list[Known | None]:
    """A quantised convolution, channels first or last; its weight is channels-first either way."""
    weight, last = _shape_of(operands, 3), bool(attributes.get("channels_last"))
    sides = shape[1:-1] if last else shape[2:]
    rank = len(sides)
    strides, dilations = attributes.get("strides") or [1] * rank, attributes.get("dilations") or [1] * rank
    pads = attributes.get("pads") or [0] * 2 * rank
    same = str(attributes.get("auto_pad", "NOTSET")).startswith("SAME")
    out = []
    for i, side in enumerate(sides):
        reach = (weight[2 + i] - 1) * dilations[i] + 1
        out.append(-(-side // strides[i]) if same else (side + pads[i] + pads[i + rank] - reach) // strides[i] + 1)
    found = (shape[0], weight[0], *out)
    return [(_last(found) if last else found, kind)]


def _lstm(
    attributes: Mapping[str, Any], operands: list[Known | None], shape: tuple[int, ...], kind: int
) -> list[Known | None]:
    directions, width = 2 if attributes.get("direction") == "bidirectional" else 1, int(attributes["hidden_size"])
    state = ((directions, shape[1], width), kind)
    return [((shape[0], directions, shape[1], width), kind), state, state]


_RULES: dict[str, Rule] = {
    "QLinearAdd": _broadcast,
    "QLinearMul": _broadcast,
    "QLinearConcat": _concatenated,
    "QLinearConv": _convolved,
    "SkipLayerNormalization": _skipped,
    "SkipSimplifiedLayerNormalization": _skipped,
    "EmbedLayerNormalization": _embedded,
    "Attention": _attended,
    "MultiHeadAttention": _multi_head,
    "GroupQueryAttention": _grouped,
    "QuantizeLinear": _quantised,
    "DequantizeLinear": _dequantised,
    "ReorderInput": _reordered,
    "ReorderOutput": _reordered,
    "Upsample": _upsampled,
    "DynamicQuantizeLSTM": _lstm,
}
