"""Graph: the table of operators: how each moves data, how much arithmetic it does, what it saves for backward.

The vocabulary is that of ONNX: opset 23 and older, some newer operators, and the contrib operators that ONNX Runtime's
optimiser writes. A few operators of PyTorch that ONNX has no name for are added. Floating-point operations of
element-wise functions are counted by convention: see ``docs/units.md``.
"""

from typing import Literal

from foretell.frozen import dataclass

OpKind = Literal[
    "view",  # shares the storage of its input: no kernel, unless the strides do not allow a view
    "free",  # computed before the run, or on the host: no work for the device
    "elementwise",  # computes each output element from the matching input elements
    "reduction",  # reads every input element once and writes fewer
    "movement",  # copies without arithmetic: reads as much as it writes
    "generator",  # writes its output without reading anything
    "normalisation",  # computes statistics over axes, then works element-wise
    "pooling",  # reads a window of the input for every output element
    "contraction",  # multiply-accumulates: convolution, matrix product
    "attention",  # two contractions around a softmax, in one kernel
    "recurrent",  # contractions in every time step
    "gather",  # reads only the elements that it picks
    "scatter",  # copies its first input and overwrites parts of it
    "sort",  # n log n operations
    "control",  # runs sub-graphs
    "unknown",  # not in this table
]
Saved = Literal["inputs", "output", "nothing"]


@dataclass(frozen=True, slots=True)
class Operator:
    """The entry of one operator. ``flops`` counts per output element, for reductions per input element."""

    kind: OpKind
    flops: float = 0.0
    saves: Saved = "inputs"


UNKNOWN = Operator("unknown", 1.0)
OPERATORS: dict[str, Operator] = {}


def _enter(names: str, kind: OpKind, flops: float = 0.0, saves: Saved = "inputs") -> None:
    """Add operators to the table; ``names`` are separated by spaces."""
    for name in names.split():
        OPERATORS[name] = Operator(kind, flops, saves)


# views: PyTorch only changes shape and strides; Dropout is the identity at inference
_enter(
    "Identity Reshape Flatten Squeeze Unsqueeze Transpose Slice Split Expand Select Dropout Contiguous BitCast "
    "Unfold Diagonal",
    "view",
    saves="nothing",
)
# computed at conversion or on the host
_enter(
    "Constant Shape Size SequenceLength OptionalHasElement Optional OptionalGetElement SequenceConstruct SequenceEmpty "
    "SequenceAt SequenceInsert SequenceErase SplitToSequence",
    "free",
    saves="nothing",
)
# element-wise: 1 for a cheap operation, 4 for a transcendental function; a composition counts the sum of its parts
_enter("Add Sub Sum Mean Neg Cast CastLike CopyTo", "elementwise", 1, "nothing")
_enter("Mul Div Max Min Abs Sign Where PRelu LeakyRelu Relu6 Mod Pow2 Addcmul Lerp", "elementwise", 1)
# ReLU, square roots, exponentials and sigmoids save their result: their derivative is written in terms of it
_enter("Relu", "elementwise", 1, "output")
_enter("Clip ThresholdedRelu HardSigmoid", "elementwise", 1)
_enter(
    "And Or Xor Not Equal Greater GreaterOrEqual Less LessOrEqual IsInf IsNaN BitShift BitwiseAnd BitwiseNot BitwiseOr "
    "BitwiseXor Ceil Floor Round",
    "elementwise",
    1,
    "nothing",
)
_enter("HardSwish Shrink Softsign", "elementwise", 3)
_enter("DropoutMask", "elementwise", 3, "nothing")
_enter("Sqrt Rsqrt Reciprocal Exp Sigmoid", "elementwise", 4, "output")
_enter("Log Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh Erf Pow", "elementwise", 4)
_enter("Tanh", "elementwise", 6, "output")
_enter("Elu Selu Celu Softplus Swish Silu QuickGelu", "elementwise", 5)
_enter("Gelu FastGelu BiasGelu Mish SwiGLU BiasSplitGelu GatedGelu Glu", "elementwise", 8)
_enter("RotaryEmbedding", "elementwise", 3)
_enter("QuantizeLinear DequantizeLinear DynamicQuantizeLinear", "elementwise", 3, "nothing")
_enter(
    "QLinearAdd QLinearMul QLinearLeakyRelu QLinearSigmoid QLinearSoftmax QLinearConcat", "elementwise", 4, "nothing"
)
_enter("Bernoulli RandomNormalLike RandomUniformLike Multinomial", "elementwise", 4, "nothing")

# reductions: counted per input element; a plain sum needs nothing for its backward but the shape
_enter("ReduceMean ReduceSum ReduceL1 ReduceMax ReduceMin ArgMax ArgMin ReduceAny", "reduction", 1, "nothing")
_enter("ReduceL2 ReduceSumSquare ReduceProd ReduceLogSum ReduceVariance", "reduction", 2)
_enter("ReduceLogSumExp", "reduction", 5)
_enter("CumSum CumProd", "reduction", 1, "nothing")
_enter("NonZero Compress Unique", "reduction", 1, "nothing")
_enter("NegativeLogLikelihoodLoss", "reduction", 1)
_enter("SoftmaxCrossEntropyLoss", "reduction", 6)
# the 1 of the next two is a placeholder: cost/arithmetic.py multiplies by the side of the matrix, or counts pairs
_enter("Det Inverse", "reduction", 1)
_enter("NonMaxSuppression", "reduction", 1)

# copies
_enter(
    "Concat ConcatFromSequence Tile Pad DepthToSpace SpaceToDepth ReverseSequence Roll Flip CenterCropPad Copy Trilu "
    "Im2Col",
    "movement",
    saves="nothing",
)
_enter("Upsample", "movement", saves="nothing")
_enter("Resize", "elementwise", 7, "nothing")  # cost/arithmetic.py counts by interpolation mode
_enter("GridSample AffineGrid", "elementwise", 12)
_enter("Col2Im", "movement", 1, "nothing")
# tensors that are made without an input
_enter("ConstantOfShape Range EyeLike RandomNormal RandomUniform", "generator", 0, "nothing")
_enter("OneHot", "generator", 1, "nothing")
_enter("HannWindow HammingWindow BlackmanWindow MelWeightMatrix", "generator", 6, "nothing")

# at inference a batch norm is one multiply and one add; the other norms compute their statistics, too
_enter("BatchNormalization", "normalisation", 2)
_enter(
    "LayerNormalization GroupNormalization InstanceNormalization MeanVarianceNormalization SkipLayerNormalization",
    "normalisation",
    8,
)
_enter("EmbedLayerNormalization", "normalisation", 10)
_enter(
    "RMSNormalization SimplifiedLayerNormalization SkipSimplifiedLayerNormalization LpNormalization", "normalisation", 5
)
_enter("Softmax LogSoftmax Hardmax", "normalisation", 7, "output")
_enter("LRN", "normalisation", 6)  # cost/arithmetic.py adds the window

# pooling: cost/arithmetic.py counts the window; a global pool is a reduction
_enter("MaxPool AveragePool LpPool MaxRoiPool AdaptiveAveragePool AdaptiveMaxPool QLinearAveragePool", "pooling")
_enter("GlobalAveragePool GlobalMaxPool GlobalLpPool QLinearGlobalAveragePool", "reduction", 1, "nothing")
_enter("RoiAlign", "pooling", 12)
_enter("MaxUnpool", "scatter", 0, "nothing")

# contractions: cost/arithmetic.py counts their multiply-accumulates
_enter(
    "Conv ConvTranspose ConvInteger QLinearConv DeformConv FusedConv NhwcConv NhwcFusedConv CausalConvWithState",
    "contraction",
)
_enter(
    "MatMul Gemm MatMulInteger QLinearMatMul QGemm FusedMatMul FusedGemm TransposeMatMul MatMulNBits "
    "MatMulIntegerToFloat",
    "contraction",
)
_enter("DynamicQuantizeMatMul Einsum MoE GroupedMatMul Bilinear", "contraction")
_enter("SelectiveScan", "normalisation", 20)  # cost/arithmetic.py counts 9 for each element of the state
_enter("DFT STFT TfIdfVectorizer", "reduction", 1, "nothing")  # cost/arithmetic.py counts 5 n log2 n for DFT and STFT
_enter(
    "Attention MultiHeadAttention GroupQueryAttention LinearAttention FlexAttention PackedAttention ContribAttention",
    "attention",
)
_enter("LSTM GRU RNN RNNCell", "recurrent")
_enter("LSTMCell GRUCell", "elementwise", 20)  # the gates alone: the products of a cell are nodes of their own
# data-dependent access: only the elements that are picked or overwritten count
_enter("Gather GatherElements GatherND EmbeddingBag", "gather", saves="nothing")
_enter("Scatter ScatterElements ScatterND TensorScatter IndexFill", "scatter", saves="nothing")
_enter("TopK Sort", "sort", saves="nothing")
_enter("If Loop Scan SequenceMap", "control")
# operators on strings and encoded images always run on the host
_enter("StringConcat StringNormalizer StringSplit RegexFullMatch ImageDecoder", "free", saves="nothing")


DOMAINS = frozenset({"", "ai.onnx", "com.microsoft"})  # the domains whose operators the table describes


def lookup(op: str, domain: str = "") -> Operator:
    """Return the entry of ``op``. An operator that is not in the table, or of another domain, has kind ``unknown``.

    >>> lookup("Conv").kind, lookup("NoSuchThing").kind, lookup("Conv", "org.example").kind
    ('contraction', 'unknown', 'unknown')
    """
    return OPERATORS.get(op, UNKNOWN) if domain in DOMAINS else UNKNOWN


def foreign_name(op: str, domain: str) -> str:
    """Return the name of an unknown operator; with its domain if a known operator is called the same.

    Rules look operators up by name: nothing may take ``Conv`` of another domain for a convolution.

    >>> foreign_name("Mystery", "org.example"), foreign_name("Conv", "org.example")
    ('Mystery', 'org.example::Conv')
    """
    return f"{domain}::{op}" if op in OPERATORS else op
