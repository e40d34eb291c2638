"""Features: the columns of a unit's row, and a hash of them that fitted predictors carry.

Sizes and times are stored as logarithms to base 2, because relative differences matter. Categories (operator, kind,
phase, dtype) are positions in fixed lists; −1 is an unknown one (`foretell.features.operator_codes` has that of
operators). `SCHEMA` is a hash of all columns and lists: a fitted predictor refuses rows of another schema.
"""

import hashlib

from foretell.features.operator_codes import FIRST_CODED
from foretell.features.reuse import REUSE_COLUMNS
from foretell.features.shapes import SHAPE_COLUMNS

PHASES = ("forward", "backward", "optimizer")
KINDS = (
    "view", "free", "elementwise", "reduction", "movement", "generator", "normalisation", "pooling", "contraction",
    "attention", "recurrent", "gather", "scatter", "sort", "control", "unknown",
)  # fmt: skip
DTYPES = ("fp32", "fp16", "bf16", "fp64", "int64", "int32", "bool", "complex64")

COLUMNS = (
    "operator", "kind", "phase", "dtype", "nodes", "launches", "log_flops", "log_macs", "tensor_core_share",
    "log_read_bytes", "log_written_bytes", "log_parameter_bytes", "log_compute_us", "log_memory_us", "log_bound_us",
    "log_intensity", *REUSE_COLUMNS, *SHAPE_COLUMNS,
)  # fmt: skip
SCHEMA = hashlib.sha256("|".join((*COLUMNS, *FIRST_CODED, *KINDS, *PHASES, *DTYPES)).encode()).hexdigest()[:16]
