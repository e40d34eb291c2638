"""Sizes, dtypes and what a tensor refuses to be."""

import pickle

import pytest

from foretell.errors import GraphError, InputError
from foretell.graph import Tensor, parse_dtype
from foretell.graph.ir.tensor import ClassedTensors, TensorClasses


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


def test_tensors_of_a_class_differ_only_in_their_names() -> None:
    tensors = {
        "a": Tensor("a", (2, 3)),
        "b": Tensor("b", (2, 3)),
        "fixed": Tensor("fixed", (2, 3)),
        "batched": Tensor("batched", (2, 3), batch_axis=0),
        "half": Tensor("half", (2, 3), "fp16"),
        "weight": Tensor("weight", (2, 3), kind="parameter"),
    }
    classes = TensorClasses.of(tensors, frozenset({"fixed"}))
    assert list(classes.numbers.values()) == [0, 0, 1, 2, 3, 4]
    assert classes.counts() == [2, 1, 1, 1, 1]
    made = ClassedTensors(classes)
    assert made == tensors
    assert list(made) == list(tensors)
    assert len(made) == 6
    assert "a" in made
    assert "c" not in made
    with pytest.raises(KeyError):
        made["c"]
    again = pickle.loads(pickle.dumps(made))
    assert type(again) is dict
    assert again == tensors
    assert repr(made) == repr(tensors)
