"""Sizes, dtypes and what a tensor refuses to be."""

import pytest

from foretell.errors import GraphError, InputError
from foretell.graph import Tensor, parse_dtype


@pytest.mark.parametrize(
    ("shape", "dtype", "size"),
    [
        ((2, 3), "fp32", 24),
        ((), "fp64", 8),
        ((3,), "int4", 2),
        ((0, 5), "fp16", 0),
        ((5,), "bool", 5),
        ((4,), "fp8", 4),
    ],
)
def test_bytes(shape: tuple[int, ...], dtype: str, size: int) -> None:
    assert Tensor("t", shape, dtype).bytes == size


@pytest.mark.parametrize(
    ("text", "dtype"),
    [("float16", "fp16"), ("torch.bfloat16", "bf16"), (" FP32 ", "fp32"), ("half", "fp16"), ("double", "fp64")],
)
def test_dtypes_as_people_write_them(text: str, dtype: str) -> None:
    assert parse_dtype(text) == dtype


@pytest.mark.parametrize("text", ["int8", "fp7", "", "float"[::-1]])
def test_dtypes_that_are_none(text: str) -> None:
    with pytest.raises(InputError, match="Unknown dtype"):
        parse_dtype(text)


@pytest.mark.parametrize(
    "tensor",
    [
        Tensor("t", (2, -1)),
        Tensor("t", (2.0,)),  # type: ignore[arg-type]
        Tensor("t", (2,), "fp12"),
        Tensor("t", (2,), batch_axis=1),
        Tensor("t", (2,), batch_axis=-1),
    ],
)
def test_impossible_tensors(tensor: Tensor) -> None:
    with pytest.raises(GraphError, match="'t'"):
        tensor.validate()
