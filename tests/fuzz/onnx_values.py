"""What random ONNX models are made of: sizes, numbers, texts and names of operators, usual and odd."""

import onnx

SIZES = (0, 1, 1, 2, 3, 4, 5, 7, 8, 11, 16, 33, 64, 224, 2**16, 2**31, 2**40)
USUAL = (1, 2, 3, 4, 8, 11, 16)
INTEGERS = (-(2**63), -(2**31), -7, -2, -1, 0, 1, 1, 2, 2, 3, 4, 8, 16, 2**20, 2**31, 2**62, 2**63 - 1)
FLOATS = (-1e38, -1.0, 0.0, 1e-9, 0.5, 1.0, 2.0, 1e38, float("inf"), float("nan"))
TEXTS = (
    "",
    "linear",
    "nearest",
    "cubic",
    "SAME_UPPER",
    "VALID",
    "bidirectional",
    "ij,jk->ik",
    "...a,a->...",
    "->",
    "é",
)
CONTRIB = (
    "Attention",
    "MultiHeadAttention",
    "GroupQueryAttention",
    "SkipLayerNormalization",
    "EmbedLayerNormalization",
    "FusedConv",
    "QGemm",
    "FusedMatMul",
    "MatMulNBits",
    "MoE",
    "QLinearConv",
    "QLinearAdd",
    "QLinearConcat",
    "QLinearSoftmax",
    "BiasGelu",
    "RotaryEmbedding",
    "GroupNorm",
    "NhwcMaxPool",
    "DynamicQuantizeLSTM",
    "QuantizeLinear",
    "DequantizeLinear",
    "DynamicQuantizeMatMul",
    "Inverse",
    "Mystery",
    "Conv",
    "Loop",
)
ELEMENTWISE = (
    "Relu",
    "Sigmoid",
    "Tanh",
    "Erf",
    "Sqrt",
    "Exp",
    "Neg",
    "Abs",
    "Dropout",
    "Identity",
    "Cast",
    "Gelu",
    "LeakyRelu",
    "HardSwish",
    "Softplus",
)
SCHEMAS = sorted({s.name for s in onnx.defs.get_all_schemas() if not s.domain})
PRODUCERS = ("", "", "pytorch", "tf2onnx", "jax2onnx")
READERS = (
    "SequenceInsert", "SequenceErase", "SequenceAt", "SequenceLength", "ConcatFromSequence", "OptionalHasElement",
    "OptionalGetElement", "SequenceMap",
)  # fmt: skip
