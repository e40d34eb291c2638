"""Features: the code of every operator, a number that fitted predictors know it by.

The code of an operator is its place in `CODED`. Fits are made with these codes, so the list only grows: a new operator
goes to its end, and no name is moved, renamed or taken out. `SCHEMA` in `foretell.features.units` covers the names that
were there when the list began, so that an operator more leaves all fits as they are.

A fit that never saw a code takes it as no operator in particular: the row of the embedding is 0, no set of a tree has
it. What is left is what the unit computes and moves, and its kind.
"""

CODED = (
    "Abs", "Acos", "Acosh", "AdaptiveAveragePool", "AdaptiveMaxPool", "Add", "Addcmul", "AffineGrid", "And", "ArgMax",
    "ArgMin", "Asin", "Asinh", "Atan", "Atanh", "Attention", "AveragePool", "BatchNormalization", "Bernoulli",
    "BiasGelu", "BiasSplitGelu", "Bilinear", "BitCast", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr",
    "BitwiseXor", "BlackmanWindow", "Cast", "CastLike", "CausalConvWithState", "Ceil", "Celu", "CenterCropPad",
    "Clip", "Col2Im", "Compress", "Concat", "ConcatFromSequence", "Constant", "ConstantOfShape", "Contiguous",
    "ContribAttention", "Conv", "ConvInteger", "ConvTranspose", "Copy", "CopyTo", "Cos", "Cosh", "CumProd", "CumSum",
    "DFT", "DeformConv", "DepthToSpace", "DequantizeLinear", "Det", "Diagonal", "Div", "Dropout", "DropoutMask",
    "DynamicQuantizeLinear", "DynamicQuantizeMatMul", "Einsum", "Elu", "EmbedLayerNormalization", "EmbeddingBag",
    "Equal", "Erf", "Exp", "Expand", "EyeLike", "FastGelu", "Flatten", "FlexAttention", "Flip", "Floor", "FusedConv",
    "FusedGemm", "FusedMatMul", "GRU", "GRUCell", "GatedGelu", "Gather", "GatherElements", "GatherND", "Gelu", "Gemm",
    "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "Glu", "Greater", "GreaterOrEqual", "GridSample",
    "GroupNormalization", "GroupQueryAttention", "GroupedMatMul", "HammingWindow", "HannWindow", "HardSigmoid",
    "HardSwish", "Hardmax", "Identity", "If", "Im2Col", "ImageDecoder", "IndexFill", "InstanceNormalization",
    "Inverse", "IsInf", "IsNaN", "LRN", "LSTM", "LSTMCell", "LayerNormalization", "LeakyRelu", "Lerp", "Less",
    "LessOrEqual", "LinearAttention", "Log", "LogSoftmax", "Loop", "LpNormalization", "LpPool", "MatMul",
    "MatMulInteger", "MatMulIntegerToFloat", "MatMulNBits", "Max", "MaxPool", "MaxRoiPool", "MaxUnpool", "Mean",
    "MeanVarianceNormalization", "MelWeightMatrix", "Min", "Mish", "MoE", "Mod", "Mul", "MultiHeadAttention",
    "Multinomial", "Neg", "NegativeLogLikelihoodLoss", "NhwcConv", "NhwcFusedConv", "NonMaxSuppression", "NonZero",
    "Not", "OneHot", "Optional", "OptionalGetElement", "OptionalHasElement", "Or", "PRelu", "PackedAttention", "Pad",
    "Pow", "Pow2", "QGemm", "QLinearAdd", "QLinearAveragePool", "QLinearConcat", "QLinearConv",
    "QLinearGlobalAveragePool", "QLinearLeakyRelu", "QLinearMatMul", "QLinearMul", "QLinearSigmoid", "QLinearSoftmax",
    "QuantizeLinear", "QuickGelu", "RMSNormalization", "RNN", "RNNCell", "RandomNormal", "RandomNormalLike",
    "RandomUniform", "RandomUniformLike", "Range", "Reciprocal", "ReduceAny", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
    "ReduceVariance", "RegexFullMatch", "Relu", "Relu6", "Reshape", "Resize", "ReverseSequence", "RoiAlign", "Roll",
    "RotaryEmbedding", "Round", "Rsqrt", "STFT", "Scan", "Scatter", "ScatterElements", "ScatterND", "Select",
    "SelectiveScan", "Selu", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert",
    "SequenceLength", "SequenceMap", "Shape", "Shrink", "Sigmoid", "Sign", "Silu", "SimplifiedLayerNormalization",
    "Sin", "Sinh", "Size", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "Slice", "Softmax",
    "SoftmaxCrossEntropyLoss", "Softplus", "Softsign", "Sort", "SpaceToDepth", "Split", "SplitToSequence", "Sqrt",
    "Squeeze", "StringConcat", "StringNormalizer", "StringSplit", "Sub", "Sum", "SwiGLU", "Swish", "Tan", "Tanh",
    "TensorScatter", "TfIdfVectorizer", "ThresholdedRelu", "Tile", "TopK", "Transpose", "TransposeMatMul", "Trilu",
    "Unfold", "Unique", "Unsqueeze", "Upsample", "Where", "Xor",
)  # fmt: skip
FIRST_CODED = CODED[:267]
UNKNOWN_CODE = -1

_CODES = {name: code for code, name in enumerate(CODED)}


def operator_code(name: str) -> int:
    """Return the code of an operator; −1 if it has none.

    >>> operator_code("Abs"), operator_code("NoSuchThing")
    (0, -1)
    """
    return _CODES.get(name, UNKNOWN_CODE)


def operator_name(code: int) -> str:
    """Return the operator of a code; empty if no operator has it.

    >>> operator_name(0), operator_name(-1)
    ('Abs', '')
    """
    return next((name for name, known in _CODES.items() if known == code), "")
