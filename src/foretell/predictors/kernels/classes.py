"""Predictors: kernel classes: the library, algorithm, tile and layout that the name of a kernel stands for.

Names of kernels are C++ symbols. There are thousands of them, and most differ only in a type or a count. A class is
what a person would say about a kernel: a cuBLAS matrix product in tiles of 128×256, transposed.
``docs/kernel-classes.md`` lists the classes.

Patterns are tried in order and the first match wins, so specific ones come before general ones. A name that no pattern
matches gets the class ``other``. A new version of a library may bring names that need a new pattern.
"""

import re
from dataclasses import dataclass
from functools import cache

OTHER = "other"


@dataclass(frozen=True)
class KernelClass:
    """The library, the algorithm, the tile of the result that a block computes, and the layout; "" means none."""

    library: str
    algorithm: str
    tile: str = ""
    layout: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in (self.library, self.algorithm, self.tile, self.layout) if part)


# matrix products and convolutions whose name contains their tile
_NVJET = re.compile(r"nvjet_\w+?_(?P<tile>\d+x\d+)_\d+x\d+_\d+x\d+_[hv]_\w*?(?P<layout>[NT]{2})[NT](?:_|$)")
_XMMA = re.compile(
    r"xmma_(?P<depthwise>depthwise_convolution_)?(?P<what>gemm|fprop|dgrad|wgrad)\w*?_(?P<layout>[nt]{2}_n|nhwc|nchw)"
    r"\w*?_tile(?:size)?(?P<tile>\d+x\d+)"
)
_CUTLASS = re.compile(
    r"cutlass_(?:\d+_)?(?:wmma_)?(?:tensorop|simt)_\w*?(?P<what>gemm|fprop|dgrad|wgrad)\w*?_(?P<tile>\d+x\d+)_"
    r"(?:\d+x\d+_)?(?P<layout>[nt]{2}|nhwc|nchw)"
)
_FMHA = re.compile(r"fmha_cutlass(?P<way>[FB])_\w+?_(?P<tile>\d+x\d+)")
_WHATS = {"gemm": "product", "fprop": "convolution", "dgrad": "convolution-data", "wgrad": "convolution-weights"}

# the first pattern that matches a name decides library and algorithm
_KNOWN = tuple(
    (re.compile(pattern), library, algorithm)
    for pattern, library, algorithm in (
        (r"^Memcpy", "cuda", "copy"),
        (r"^Memset", "cuda", "fill"),
        (r"^triton_per", "inductor", "reduction-persistent"),
        (r"^triton_red", "inductor", "reduction"),
        (r"^triton_(poi|pointwise)", "inductor", "pointwise"),
        (r"^triton_(tem|mm)", "inductor", "product"),
        (r"(implicit|precomputed)_convolve|convolve_common|conv1D_NCHW", "cudnn", "convolution-simple"),
        (r"splitKreduce|reduce_splitk|split_k_reduce", "cublas", "split-reduce"),
        (r"gemmSN", "cublas", "product-narrow"),
        (r"gemv_|gemv[x2NT]|gemmk1_kernel|dot_kernel|reduce_1Block", "cublas", "product-vector"),
        (r"cublasLt::epilogue", "cublas", "epilogue"),
        (r"[sdhc]gemm_|sgemm", "cublas", "product"),
        (r"scal_kernel", "cublas", "scale"),
        (r"sdpa\w*bprop|sdpa\w*backward|compute_dot_do_o|convert_dq", "cudnn", "attention-backward"),
        (r"sdpa", "cudnn", "attention"),
        (r"flash_bwd|flash_backward", "flash", "attention-backward"),
        (r"flash_fwd|flash::", "flash", "attention"),
        (r"elemWiseRNNcell|LSTM_elementWise|GRU_elementWise", "cudnn", "recurrent-cell"),
        (r"[Pp]ersistRNN|RNN_blockPersist|persist\w*LSTM", "cudnn", "recurrent-persistent"),
        (r"nchwToNhwc|NchwToFoldedNhwc|nchwToFoldedNhwc|nhwcToNchw|NhwcToNchw", "cudnn", "layout"),
        (r"tensorTransform|genericTranspose|scalePacked|AddPaddingKernel|nhwcSlice|FoldedNhwc", "cudnn", "layout"),
        (r"winograd", "cudnn", "convolution-winograd"),
        (r"fft", "cudnn", "convolution-fourier"),
        (r"dgrad2d_c1_k1|conv2d_c1_k1|wgrad2d_c1_k1", "cudnn", "convolution-depthwise"),
        (r"grouped_direct", "cudnn", "convolution-grouped"),
        (r"dgrad_engine|dgrad2?d?_alg|dgrad\w*_kernel|strided_dgrad", "cudnn", "convolution-data"),
        (r"wgrad_alg|wgrad\w*_kernel|reduce_wgrad|wgrad2d_shmem", "cudnn", "convolution-weights"),
        (r"kern_precompute_indices|computeOffsets|compute_gemm_pointers", "cudnn", "indices"),
        (r"cudnn::bn_fw_inf", "cudnn", "batch-norm"),
        (r"cudnn::bn_fw", "cudnn", "batch-norm-training"),
        (r"cudnn::bn_bw", "cudnn", "batch-norm-backward"),
        (r"cask_plugin|cutlass__5x_cudnn|_ZN17cutlass__5x_cudnn", "cudnn", "convolution"),
        (r"cudnn", "cudnn", OTHER),
        (r"radix_sort|RadixSort|bitonic|sortKeyValue", "cub", "sort"),
        (r"cub::|thrust::", "cub", "scan"),
        (r"multi_tensor_apply", "pytorch", "many-tensors"),
        (r"softmax_warp|softmax_cooperative|log_softmax_warp", "pytorch", "softmax-warp"),
        (r"[Ss]oft[Mm]ax", "pytorch", "softmax-block"),
        (r"vectorized_layer_norm|LayerNormForward|RowwiseMoments|rms_norm", "pytorch", "row-norm"),
        (r"layer_norm_grad|GammaBetaBackward|LayerNormBackward", "pytorch", "row-norm-backward"),
        (r"GroupNorm|ComputeFusedParams|ComputeInternalGradients|ComputeBackwardFused", "pytorch", "group-norm"),
        (r"batch_norm_transform_input", "pytorch", "batch-norm"),
        (r"batch_norm_backward", "pytorch", "batch-norm-backward"),
        (r"batch_norm", "pytorch", "batch-norm-training"),
        (r"CatArrayBatchedCopy", "pytorch", "concatenate"),
        (r"conv_depthwise\w*grad|conv_depthwise\w*backward", "pytorch", "convolution-depthwise-backward"),
        (r"conv_depthwise", "pytorch", "convolution-depthwise"),
        (r"im2col|vol2col|col2im|col2vol", "pytorch", "unfold"),
        (r"max_pool|adaptivemaxpool|avg_pool|adaptive_average_pool|[Aa]vg_?[Pp]ool", "pytorch", "pool"),
        (r"upsample", "pytorch", "resize"),
        (r"fused_dropout|distribution_elementwise|philox", "pytorch", "random"),
        (r"embedding|EmbeddingBag", "pytorch", "embedding"),
        (r"gather|scatter|index|Index|roll_cuda|flip|triu_tril|take_", "pytorch", "gather"),
        (r"reduce_kernel|ReduceOp", "pytorch", "reduce"),
        (r"vectorized_elementwise_kernel", "pytorch", "pointwise-vectors"),
        (r"unrolled_elementwise_kernel", "pytorch", "pointwise-unrolled"),
        (r"elementwise_kernel", "pytorch", "pointwise-strided"),
        (r"at::native", "pytorch", OTHER),
    )
)


@cache
def kernel_class(name: str) -> KernelClass:
    """The class of a kernel by its name.

    >>> str(kernel_class("nvjet_sm90_tst_64x8_64x16_2x4_h_bz_TNT"))
    'cublas product 64x8 tn'
    >>> str(kernel_class("Memset (Device)"))
    'cuda fill'
    """
    if match := _NVJET.search(name):
        split = "-split" if "splitK" in name else ""
        return KernelClass("cublas", f"product{split}", match["tile"], match["layout"].lower())
    if match := _XMMA.search(name):
        library = "cublas" if match["what"] == "gemm" else "cudnn"
        operation = _WHATS[match["what"]] + ("-depthwise" if match["depthwise"] else "")
        return KernelClass(library, operation, match["tile"], match["layout"].removesuffix("_n"))
    if match := _CUTLASS.search(name):
        library = "cudnn" if "cudnn" in name else "cublas"
        return KernelClass(library, _WHATS[match["what"]], match["tile"], match["layout"])
    if match := _FMHA.search(name):
        return KernelClass("cutlass", "attention" if match["way"] == "F" else "attention-backward", match["tile"])
    for pattern, library, algorithm in _KNOWN:
        if pattern.search(name):
            return KernelClass(library, algorithm)
    return KernelClass(OTHER, OTHER)
