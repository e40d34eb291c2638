"""graph: what every operator is: how it moves data, what arithmetic it does, what its backward pass keeps.

The vocabulary is ONNX's (opset 23 and older, the newer ones where they are plain, and the contrib operators that
ONNX Runtime's optimiser writes), plus a few operators of PyTorch that ONNX has no name for. Floating-point operations
of element-wise functions are counted by convention: see ``docs/units.md``.
"""

from dataclasses import dataclass
from typing import Literal

OpKind = Literal[
    "view",  # a new look at the same storage: no kernel, unless the layout forbids it
    "free",  # known before the run, or done on the host: no device work
    "elementwise",  # every output element from the matching input elements
    "reduction",  # every input element read once, fewer written
    "movement",  # copies without arithmetic: writes its output, reads as much
    "generator",  # writes its output from nothing
    "normalisation",  # statistics over an axis, then element-wise
    "pooling",  # a window of the input for every output element
    "contraction",  # multiply-accumulate: convolution, matrix product
    "attention",  # two contractions around a softmax, in one kernel
    "recurrent",  # contractions once a time step
    "gather",  # reads only what it picks
    "scatter",  # copies its first input and writes over parts of it
    "sort",  # n log n
    "control",  # runs sub-graphs
    "unknown",
]
Saved = Literal["inputs", "output", "nothing"]


@dataclass(frozen=True, slots=True)
class Operator:
    """The entry of one operator. ``flops`` is per output element (per input element for reductions)."""

    kind: OpKind
    flops: float = 0.0
    saves: Saved = "inputs"


UNKNOWN = Operator("unknown", 1.0)
OPERATORS: dict[str, Operator] = {}


def _enter(names: str, kind: OpKind, flops: float = 0.0, saves: Saved = "inputs") -> None:
    for name in names.split():
        OPERATORS[name] = Operator(kind, flops, saves)


_enter(
    "Identity Reshape Flatten Squeeze Unsqueeze Transpose Slice Split Expand Select Dropout Contiguous BitCast "
    "Unfold Diagonal",
    "view",
    saves="nothing",
)
_enter(
    "Constant Shape Size SequenceLength OptionalHasElement Optional OptionalGetElement SequenceConstruct SequenceEmpty "
    "SequenceAt SequenceInsert SequenceErase SplitToSequence",
    "free",
    saves="nothing",
)
# element-wise: cheap ones take 1, compositions what they are made of, transcendental functions 4 an evaluation
_enter("Add Sub Sum Mean Neg Cast CastLike CopyTo", "elementwise", 1, "nothing")
_enter("Mul Div Max Min Abs Sign Where PRelu LeakyRelu Relu6 Mod Pow2 Addcmul Lerp", "elementwise", 1)
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

_enter("ReduceMean ReduceSum ReduceL1 ReduceMax ReduceMin ArgMax ArgMin ReduceAny", "reduction", 1, "nothing")
_enter("ReduceL2 ReduceSumSquare ReduceProd ReduceLogSum ReduceVariance", "reduction", 2)
_enter("ReduceLogSumExp", "reduction", 5)
_enter("CumSum CumProd", "reduction", 1, "nothing")
_enter("NonZero Compress Unique", "reduction", 1, "nothing")
_enter("NegativeLogLikelihoodLoss", "reduction", 1)
_enter("SoftmaxCrossEntropyLoss", "reduction", 6)
_enter("Det Inverse", "reduction", 1)  # cost.py multiplies by the matrix' side
_enter("NonMaxSuppression", "reduction", 1)  # cost.py counts pairs

_enter(
    "Concat ConcatFromSequence Tile Pad DepthToSpace SpaceToDepth ReverseSequence Roll Flip CenterCropPad Copy Trilu "
    "Im2Col",
    "movement",
    saves="nothing",
)
_enter("Upsample", "movement", saves="nothing")
_enter("Resize", "elementwise", 7, "nothing")  # cost.py: by interpolation mode
_enter("GridSample AffineGrid", "elementwise", 12)
_enter("Col2Im", "movement", 1, "nothing")
_enter("ConstantOfShape Range EyeLike RandomNormal RandomUniform", "generator", 0, "nothing")
_enter("OneHot", "generator", 1, "nothing")
_enter("HannWindow HammingWindow BlackmanWindow MelWeightMatrix", "generator", 6, "nothing")

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
_enter("LRN", "normalisation", 6)  # cost.py adds the window

_enter("MaxPool AveragePool LpPool MaxRoiPool AdaptiveAveragePool AdaptiveMaxPool QLinearAveragePool", "pooling")
_enter("GlobalAveragePool GlobalMaxPool GlobalLpPool QLinearGlobalAveragePool", "reduction", 1, "nothing")
_enter("RoiAlign", "pooling", 12)
_enter("MaxUnpool", "scatter", 0, "nothing")

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
_enter("SelectiveScan", "normalisation", 20)  # arithmetic.py: 9 a state element
_enter("DFT STFT TfIdfVectorizer", "reduction", 1, "nothing")  # cost.py: 5 n log2 n
_enter(
    "Attention MultiHeadAttention GroupQueryAttention LinearAttention FlexAttention PackedAttention ContribAttention",
    "attention",
)
_enter("LSTM GRU RNN LSTMCell GRUCell RNNCell", "recurrent")
_enter("Gather GatherElements GatherND EmbeddingBag", "gather", saves="nothing")
_enter("Scatter ScatterElements ScatterND TensorScatter IndexFill", "scatter", saves="nothing")
_enter("TopK Sort", "sort", saves="nothing")
_enter("If Loop Scan SequenceMap", "control")
# on strings and images, always on the host
_enter("StringConcat StringNormalizer StringSplit RegexFullMatch ImageDecoder", "free", saves="nothing")


DOMAINS = frozenset({"", "ai.onnx", "com.microsoft"})  # those whose operators mean what the table says


def lookup(op: str, domain: str = "") -> Operator:
    """The entry of ``op``; an operator nobody has entered, or of a foreign domain, is of the kind ``unknown``.

    >>> lookup("Conv").kind, lookup("NoSuchThing").kind, lookup("Conv", "org.example").kind
    ('contraction', 'unknown', 'unknown')
    """
    return OPERATORS.get(op, UNKNOWN) if domain in DOMAINS else UNKNOWN
