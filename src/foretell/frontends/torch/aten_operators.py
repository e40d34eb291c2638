"""Frontends: the table that maps ATen operators to operators of the graph, one line for each.

Where a line is not enough, a refinement function adjusts the node. An operator that is not in the table keeps its own
name in the domain ``aten`` and is reported as unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from foretell.frozen import dataclass
from foretell.graph import Tensor
from foretell.graph.ir.node import Attribute


class Ref(str):
    """The name of a tensor that is an argument of a call, as opposed to a plain string."""

    __slots__ = ()


@dataclass(frozen=True)
class AtenCall:
    """One call. ``target`` is such as ``aten.conv2d.default``; arguments have the names of the operator's schema."""

    name: str
    target: str
    arguments: Mapping[str, Any]
    outputs: tuple[str, ...]
    module: str = ""


@dataclass(frozen=True)
class Refinement:
    """What a refinement function sees. It may change the inputs and the attributes of the future node."""

    call: AtenCall
    tensors: Mapping[str, Tensor]
    inputs: list[str]
    attributes: dict[str, Attribute]


@dataclass(frozen=True)
class Row:
    """The operator of the graph that an ATen operator becomes, and the arguments that become attributes."""

    op: str
    attributes: tuple[tuple[str, str], ...] = ()
    refine: Callable[[Refinement], str | None] | None = None


_TABLE: dict[str, Row] = {}


def _enter(names: str, op: str, refine: Any = None, **attributes: str) -> None:
    """Add rows to the table. ``names`` are separated by spaces; ``attributes`` map attributes to arguments."""
    for name in names.split():
        _TABLE[name] = Row(op, tuple(attributes.items()), refine)


def find_row(target: str) -> tuple[Row | None, bool]:
    """Return the row of a target, and whether the target works in place (``relu_``)."""
    parts = target.removeprefix("torch.ops.").split(".")
    namespace, name = (parts[0], parts[1]) if len(parts) > 1 else ("", parts[0])
    key = name if namespace in ("aten", "prims", "") else f"{namespace}.{name}"
    overload = ".".join(parts[1:3]) if len(parts) > 2 else name
    if overload in _TABLE:  # an overload may have a row of its own: it comes first
        return _TABLE[overload], False
    if key in _TABLE:
        return _TABLE[key], False
    # a trailing underscore means in place; a name such as __and__ is an operator of Python
    plain = key.rstrip("_")
    if key.endswith("_") and not key.endswith("__") and plain in _TABLE:
        return _TABLE[plain], True
    return None, False


def references(values: Iterable[Any]) -> Iterable[str]:
    """The tensors among arguments, in order, also those inside lists."""
    for value in values:
        if isinstance(value, Ref):
            yield str(value)
        elif isinstance(value, list | tuple):
            yield from references(value)


# ── refinements ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _transformed(step: Refinement) -> None:
    """A Fourier transform without axes is over the last one, the last two (``fft2``) or all of them (``fftn``)."""
    if "axes" not in step.attributes:
        name, rank = step.call.target, _rank(step)
        count = 2 if "fft2" in name else rank if "fftn" in name else 1
        step.attributes["axes"] = tuple(range(-count, 0))


def _rank(step: Refinement) -> int:
    source = next(iter(references(step.call.arguments.values())), "")
    return len(step.tensors[source].shape) if source in step.tensors else 0


def _permuted(step: Refinement) -> None:
    """``permute``, ``transpose``, ``movedim`` and others all become Transpose with a full permutation."""
    rank, name = _rank(step), step.call.target.removeprefix("torch.ops.").split(".")[1].rstrip("_")
    perm = list(range(rank))
    if name == "permute":
        perm = [d % rank for d in step.call.arguments["dims"]]
    elif name in ("transpose", "swapaxes", "swapdims"):
        names = [k for k in step.call.arguments if k != "self"]
        first, second = (step.call.arguments[k] % rank for k in names[:2])
        perm[first], perm[second] = perm[second], perm[first]
    elif name == "movedim":
        sources = _listed(step.call.arguments["source"])
        destinations = [d % rank for d in _listed(step.call.arguments["destination"])]
        perm = [d for d in perm if d not in {s % rank for s in sources}]
        for source, destination in sorted(zip(sources, destinations), key=lambda pair: pair[1]):
            perm.insert(destination, source % rank)
    elif name in ("t", "mT", "adjoint", "mH"):
        perm = [*perm[:-2], *perm[:-3:-1]]
    else:
        perm.reverse()
    step.attributes["perm"] = tuple(perm)


def _listed(value: Any) -> list[int]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _sliced(step: Refinement) -> None:
    rank = max(_rank(step), 1)
    step.attributes["axes"] = (int(step.call.arguments.get("dim", 0)) % rank,)
    step.attributes["steps"] = (int(step.call.arguments.get("step", 1)),)


def _cast(step: Refinement) -> str | None:
    """A cast to the dtype a tensor already has does nothing."""
    del step.inputs[1:]
    same = (
        step.inputs
        and step.inputs[0] in step.tensors
        and step.call.outputs[0] in step.tensors
        and step.tensors[step.inputs[0]].dtype == step.tensors[step.call.outputs[0]].dtype
    )
    return "Identity" if same and not step.call.arguments.get("copy") else None


def _padded(step: Refinement) -> None:
    """A padding with values of the tensor itself is marked: its backward differs."""
    name = step.call.target.split(".")[1]
    mode = str(step.call.arguments.get("mode") or "constant")
    mode = "reflect" if name.startswith("reflection") else "replicate" if name.startswith("replication") else mode
    if mode != "constant":
        step.attributes["mode"] = mode


def _added_rows(step: Refinement) -> None:
    step.attributes["rows"] = 1  # whole rows are added, and kept for backward


def _added(step: Refinement) -> None:
    step.attributes["reduction"] = "add"  # values that meet are added, by atomic operations


def _put(step: Refinement) -> None:
    step.attributes["indexed"] = 1  # ``x[i, j] = y``: a list of indices, one for each axis


def _detached(step: Refinement) -> None:
    step.attributes["detached"] = 1  # no gradient flows on


def _bias_last(step: Refinement) -> None:
    """``addmm(bias, a, b)`` has its bias first; Gemm has it last."""
    step.inputs.append(step.inputs.pop(0))


def _dropout(step: Refinement) -> str | None:
    """In training a dropout computes a mask; at inference it does nothing."""
    active = step.call.arguments.get("train") or step.call.arguments.get("training")
    return "DropoutMask" if active and step.call.arguments.get("p", 0.5) else None


def _pooled(step: Refinement) -> str | None:
    """An adaptive pool with one output element is a global pool."""
    size = _listed(step.call.arguments.get("output_size", 0))
    if all(s == 1 for s in size):
        return "GlobalMaxPool" if "max" in step.call.target else "GlobalAveragePool"
    return None


def _recurrent(step: Refinement) -> None:
    step.attributes["directions"] = 2 if step.call.arguments.get("bidirectional") else 1


def _two_tensors(step: Refinement) -> str | None:
    """``max`` and ``min`` of two tensors are element-wise; of one tensor they are reductions."""
    if len(step.inputs) > 1:
        return "Max" if "max" in step.call.target else "Min"
    return None


def _transposed_weight(step: Refinement) -> None:
    step.attributes["transB"] = 1


def _convolved(step: Refinement) -> str | None:
    return "ConvTranspose" if step.call.arguments.get("transposed") else None


def _resized(step: Refinement) -> None:
    step.attributes["mode"] = next(
        (m for key, m in (("nearest", "nearest"), ("cubic", "cubic")) if key in step.call.target), "linear"
    )


def _masked(step: Refinement) -> None:
    """Note whether an attention has a mask tensor."""
    mask = step.call.arguments.get("attn_mask")
    if isinstance(mask, Ref):
        step.attributes["mask"] = 1


def _counted_experts(step: Refinement) -> None:
    """The number of experts is the first size of their stacked weights."""
    stacked = next(
        (step.tensors[i].shape[0] for i in step.inputs[1:] if i in step.tensors and len(step.tensors[i].shape) == 3), 1
    )
    step.attributes["experts"] = stacked


def _copied_into(step: Refinement) -> None:
    """``copy_`` overwrites its first argument with its second; the first is not read."""
    step.attributes["inplace"] = 1


# ── the tables ────────────────────────────────────────────────────────────────────────────────────────────────────────

# views: whether a reshape can be a view, or must copy, is decided later by the strides (graph/ir/layout.py)
_enter("view reshape _unsafe_view view_as reshape_as unflatten _reshape_alias flatten ravel", "Reshape")
_enter("squeeze", "Squeeze")
_enter("unsqueeze", "Unsqueeze")
_enter("permute transpose t mT mH adjoint numpy_T movedim swapaxes swapdims", "Transpose", _permuted)
_enter("expand expand_as broadcast_to", "Expand")
_enter("slice narrow", "Slice", _sliced)
_enter("select", "Select", axis="dim")
_enter("unbind", "Select", axis="dim")
_enter("split split_with_sizes chunk tensor_split unsafe_split unsafe_chunk hsplit vsplit", "Split", axis="dim")
_enter(
    "alias lift_fresh lift_fresh_copy view_as_real view_as_complex real imag positive conj _conj "
    "resolve_conj _neg_view resolve_neg",
    "Identity",
)
_enter("detach", "Identity", _detached)
_enter("unfold", "Unfold")
_enter("diagonal diag linalg_diagonal", "Diagonal")
# copies, casts and dropout
_enter("contiguous", "Contiguous")
_enter("clone copy", "Copy")
_enter("copy_", "CopyTo", _copied_into)
_enter("to _to_copy type_as convert_element_type float half bfloat16 double long int bool", "Cast", _cast)
_enter("dropout native_dropout feature_dropout alpha_dropout feature_alpha_dropout", "Dropout", _dropout)
# tensors that are made without an input; random numbers have one entry, because all distributions cost about the same
_enter(
    "zeros ones full empty zeros_like ones_like full_like empty_like new_zeros new_ones new_full "
    "new_empty scalar_tensor fill fill_ zero_ empty_permuted "
    "empty_strided new_empty_strided",
    "ConstantOfShape",
)
_enter("arange linspace logspace tril_indices triu_indices", "Range")
_enter("eye", "EyeLike")
_enter(
    "randn rand randint randperm rand_like randn_like randint_like normal uniform bernoulli multinomial", "RandomNormal"
)

# element-wise: variants that cost the same share one operator, so a subtraction is an Add and a remainder a Div
_enter("add sub rsub sum_to_size", "Add")
_enter("mul square multiply outer", "Mul")
_enter("div floor_divide true_divide divide remainder fmod", "Div")
_enter("neg", "Neg")
_enter("abs", "Abs")
_enter("sign", "Sign")
_enter("pow float_power", "Pow")
_enter("exp expm1 exp2", "Exp")
_enter("log log1p log2 log10", "Log")
_enter("sqrt", "Sqrt")
_enter("rsqrt", "Rsqrt")
_enter("reciprocal", "Reciprocal")
_enter("sin", "Sin")
_enter("cos", "Cos")
_enter("tan", "Tan")
_enter("asin arcsin", "Asin")
_enter("acos arccos", "Acos")
_enter("atan atan2 arctan angle", "Atan")
_enter("sinh", "Sinh")
_enter("cosh", "Cosh")
_enter("tanh", "Tanh")
# activations
_enter("sigmoid special_expit", "Sigmoid")
_enter("relu", "Relu")
_enter("relu6 hardtanh clamp clamp_min clamp_max clip", "Clip")
_enter("leaky_relu rrelu rrelu_with_noise", "LeakyRelu")
_enter("threshold", "ThresholdedRelu")
_enter("elu", "Elu")
_enter("selu", "Selu")
_enter("celu", "Celu")
_enter("gelu", "Gelu")
_enter("silu", "Silu")
_enter("mish", "Mish")
_enter("hardswish", "HardSwish")
_enter("hardsigmoid", "HardSigmoid")
_enter("softplus log_sigmoid log_sigmoid_forward", "Softplus")
_enter("softsign", "Softsign")
_enter("prelu _prelu_kernel", "PRelu")
_enter("erf erfc erfinv special_erf", "Erf")
_enter("glu", "Glu")
_enter("hardshrink softshrink", "Shrink")
_enter("where masked_fill nan_to_num", "Where")
_enter("maximum fmax", "Max")
_enter("minimum fmin", "Min")
# comparisons and logic
_enter("eq", "Equal")
_enter("ne", "Not")
_enter("lt", "Less")
_enter("le", "LessOrEqual")
_enter("gt", "Greater")
_enter("ge", "GreaterOrEqual")
_enter("logical_and bitwise_and __and__", "And")
_enter("logical_or bitwise_or __or__", "Or")
_enter("logical_xor bitwise_xor __xor__", "Xor")
_enter("logical_not bitwise_not __not__", "Not")
_enter("bitwise_left_shift bitwise_right_shift __lshift__ __rshift__", "BitShift")
_enter("isnan", "IsNaN")
_enter("isinf isfinite", "IsInf")
_enter("floor", "Floor")
_enter("ceil", "Ceil")
_enter("round trunc frac", "Round")
_enter("addcmul addcdiv", "Addcmul")
_enter("lerp", "Lerp")

# reductions
_enter("mean", "ReduceMean", axes="dim", keepdims="keepdim")
_enter("sum nansum", "ReduceSum", axes="dim", keepdims="keepdim")
_enter("amax", "ReduceMax", axes="dim", keepdims="keepdim")
_enter("amin", "ReduceMin", axes="dim", keepdims="keepdim")
_enter("max", "ReduceMax", _two_tensors, axes="dim", keepdims="keepdim")
_enter("min", "ReduceMin", _two_tensors, axes="dim", keepdims="keepdim")
_enter("argmax", "ArgMax", axes="dim", keepdims="keepdim")
_enter("argmin", "ArgMin", axes="dim", keepdims="keepdim")
_enter("prod", "ReduceProd", axes="dim", keepdims="keepdim")
_enter("var std var_mean std_mean", "ReduceVariance", axes="dim", keepdims="keepdim")
_enter(
    "norm linalg_vector_norm linalg_norm linalg_matrix_norm frobenius_norm dist",
    "ReduceL2",
    axes="dim",
    keepdims="keepdim",
)
_enter("logsumexp", "ReduceLogSumExp", axes="dim", keepdims="keepdim")
_enter("any all count_nonzero", "ReduceAny", axes="dim", keepdims="keepdim")
_enter("histc bincount", "ReduceSum")
_enter("cumsum logcumsumexp", "CumSum", axis="dim")
_enter("cumprod cummax cummin", "CumProd", axis="dim")
_enter("nonzero nonzero_static", "NonZero")
_enter("masked_select", "Compress")
_enter("unique unique_consecutive _unique2 unique_dim", "Unique")
_enter("linalg_det det", "Det")
_enter("linalg_inv inverse linalg_inv_ex linalg_solve", "Inverse")
_enter("nll_loss nll_loss_nd nll_loss2d", "NegativeLogLikelihoodLoss")
_enter("cross_entropy_loss", "SoftmaxCrossEntropyLoss")
_enter("torchvision.nms", "NonMaxSuppression")

# normalisation and softmax
_enter(
    "batch_norm native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training cudnn_batch_norm",
    "BatchNormalization",
)
_enter("_native_batch_norm_legit_functional _batch_norm_with_update", "BatchNormalization")
_enter("layer_norm native_layer_norm", "LayerNormalization", shape="normalized_shape")
_enter("group_norm native_group_norm", "GroupNormalization", num_groups="num_groups")
_enter("instance_norm", "InstanceNormalization")
_enter("rms_norm _fused_rms_norm", "RMSNormalization", shape="normalized_shape")
_enter("_weight_norm _weight_norm_interface", "LpNormalization")  # each row over its norm, times its length
_enter("softmax _softmax special_softmax _safe_softmax", "Softmax", axis="dim")
_enter("log_softmax _log_softmax special_log_softmax", "LogSoftmax", axis="dim")

# pooling
_enter(
    "max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices max_pool1d_with_indices",
    "MaxPool",
    kernel_shape="kernel_size",
    strides="stride",
)
_enter("avg_pool1d avg_pool2d avg_pool3d", "AveragePool", kernel_shape="kernel_size", strides="stride")
_enter(
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d",
    "AdaptiveAveragePool",
    _pooled,
)
_enter("adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d", "AdaptiveMaxPool", _pooled)
_enter("torchvision.roi_align", "RoiAlign")
_enter("max_unpool2d max_unpool3d", "MaxUnpool")

# convolutions, matrix products, attention and recurrent layers
_CONV = {"strides": "stride", "pads": "padding", "dilations": "dilation", "group": "groups"}
_enter("conv1d conv2d conv3d convolution _convolution cudnn_convolution", "Conv", _convolved, **_CONV)
_enter("conv_transpose1d conv_transpose2d conv_transpose3d", "ConvTranspose", **_CONV)
_enter("torchvision.deform_conv2d", "DeformConv", group="groups")
_enter("linear", "Gemm", _transposed_weight)
_enter("addmm addmv _addmm_activation", "Gemm", _bias_last)
_enter("baddbmm addbmm", "MatMul", _bias_last)
_enter("matmul mm bmm mv dot vdot chain_matmul linalg_matmul __matmul__", "MatMul")
_enter("einsum", "Einsum", equation="equation")
_enter("bilinear", "Bilinear")
_enter("_grouped_mm _scaled_grouped_mm transformers.grouped_mm_fallback", "GroupedMatMul")
_enter("foretell.moe_experts", "MoE", _counted_experts, top_k="top_k")
_enter("scaled_dot_product_attention", "Attention", _masked, is_causal="is_causal", enable_gqa="enable_gqa")
_enter(
    "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_efficient_attention "
    "_scaled_dot_product_cudnn_attention _scaled_dot_product_attention_math",
    "Attention",
    _masked,
    is_causal="is_causal",
)
_enter("foretell.selective_scan", "SelectiveScan")
_enter("lstm", "LSTM", _recurrent, layers="num_layers", batch_first="batch_first")
_enter("gru", "GRU", _recurrent, layers="num_layers", batch_first="batch_first")
_enter("rnn_tanh rnn_relu", "RNN", _recurrent, layers="num_layers", batch_first="batch_first")
# the kernel of all gates, after the two products (`foretell.frontends.torch.composed`)
_enter("lstm_cell _thnn_fused_lstm_cell", "LSTMCell")
_enter("gru_cell _thnn_fused_gru_cell", "GRUCell")
_enter("rnn_tanh_cell rnn_relu_cell", "RNNCell")

# indexing
_enter("embedding", "Gather")
_enter("index_select", "Gather", axis="dim")
_enter("gather take_along_dim", "GatherElements", axis="dim")
_enter("index take _unsafe_index", "GatherND")
_enter("embedding_bag _embedding_bag", "EmbeddingBag")
_enter("scatter index_copy masked_scatter put", "ScatterElements", axis="dim")
_enter("scatter_add scatter_reduce", "ScatterElements", _added, axis="dim")
_enter("index_put _unsafe_index_put", "ScatterElements", _put)
_enter("index_add", "ScatterElements", _added_rows, axis="dim")
_enter("slice_scatter select_scatter diagonal_scatter", "ScatterND")
_enter("index_fill", "IndexFill")

# joining, padding and rearranging
_enter("cat concat concatenate stack hstack vstack column_stack dstack", "Concat", axis="dim")
_enter(
    "pad constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d "
    "replication_pad2d replication_pad3d",
    "Pad",
    _padded,
)
_enter("roll", "Roll")
_enter("flip fliplr flipud rot90", "Flip")
_enter("repeat tile repeat_interleave", "Tile")
_enter("pixel_shuffle", "DepthToSpace")
_enter("pixel_unshuffle", "SpaceToDepth")
_enter("channel_shuffle native_channel_shuffle", "Copy")
_enter("tril triu", "Trilu")
_enter("im2col", "Im2Col")
_enter("col2im", "Col2Im")
_enter("meshgrid broadcast_tensors", "Expand")
_enter(
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact2d "
    "_upsample_nearest_exact1d upsample_linear1d upsample_bilinear2d "
    "upsample_bicubic2d upsample_trilinear3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa",
    "Resize",
    _resized,
)
_enter("grid_sampler grid_sampler_2d grid_sampler_3d", "GridSample")
_enter("affine_grid_generator", "AffineGrid")
# sorting, one-hot vectors and Fourier transforms
_enter("topk kthvalue", "TopK")
_enter("sort argsort msort", "Sort")
_enter("one_hot", "OneHot")
_enter("bucketize searchsorted", "GatherElements")
_enter(
    "fft_fft fft_ifft fft_rfft fft_irfft fft_fft2 fft_ifft2 fft_rfft2 fft_irfft2 fft_fftn fft_ifftn "
    "fft_rfftn fft_irfftn _fft_r2c _fft_c2r _fft_c2c",
    "DFT",
    _transformed,
    axes="dim",
)
_enter("stft istft", "STFT")
# sizes, checks and host-side calls: nothing runs on the device
_enter(
    "sym_size sym_stride sym_numel size item _local_scalar_dense _assert_async _assert_scalar "
    "_assert_tensor_metadata sym_constrain_range "
    "sym_constrain_range_for_size is_same_size numel dim stride set_grad_enabled _set_grad_enabled record_stream",
    "",
)
