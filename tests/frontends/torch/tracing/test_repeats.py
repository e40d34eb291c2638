"""A trace of a few layers becomes the trace of all; whatever is not equal is refused."""

from dataclasses import replace
from typing import Any

import pytest

from foretell.frontends.torch.aten import AtenProgram
from foretell.frontends.torch.aten_operators import AtenCall, Ref
from foretell.frontends.torch.tracing.repeats import repeat
from foretell.frontends.torch.tracing.stacks import Stack, UnequalError, Weight
from foretell.graph import Tensor

WHOLE = 7


def weights(layers: int) -> list[Weight]:
    names = [f"layers.{i}.weight" for i in range(layers)]
    return [Weight(path, Tensor("p_" + path.replace(".", "_"), (8, 8), "fp32", "parameter")) for path in names]


def program(layers: int) -> AtenProgram:
    """Two products and a sum for each layer; what a layer returns ends with the next layer."""
    calls = [AtenCall("add", "aten.add", {"self": Ref("x"), "other": 1}, ("add",), "")]
    released = {}
    last = "add"
    for i in range(layers):
        number = f"_{i}" if i else ""
        first, second = f"linear{number}", f"add_{i + 1}"
        calls += [
            AtenCall(first, "aten.linear", {"input": Ref(last), "weight": Ref(f"p_layers_{i}_weight")}, (first,),
                     f"layers.{i}"),
            AtenCall(second, "aten.add", {"self": Ref(first), "other": Ref(last)}, (second,), f"layers.{i}"),
        ]  # fmt: skip
        released |= {last: len(calls), first: len(calls)}
        last = second
    calls.append(AtenCall("relu", "aten.relu", {"self": Ref(last)}, ("relu",), ""))
    released |= {last: len(calls), "relu": len(calls)}
    made = {call.name: Tensor(call.name, (11, 8), "fp32") for call in calls}
    given = {weight.tensor.name: weight.tensor for weight in weights(layers)}
    inputs = {"x": Tensor("x", (11, 8), "fp32", "input", 0)}
    names = tuple(call.name for call in calls)
    return AtenProgram("a", tuple(calls), given | inputs | made, ("x",), ("relu",), 11, released=released, names=names)


STACK = Stack("layers", (0,) * WHOLE, (0, 4, 5, 6))


def repeated(traced: AtenProgram) -> AtenProgram:
    return repeat(traced, [STACK], weights(4), weights(WHOLE))


def test_a_program_of_few_layers_becomes_that_of_all() -> None:
    whole, expected = repeated(program(4)), program(WHOLE)
    assert whole.calls == expected.calls
    assert list(whole.tensors.items()) == list(expected.tensors.items())
    assert whole.released == expected.released
    assert whole == expected


def test_weights_of_a_program_in_half_precision_are_cast() -> None:
    half = program(4)
    tensors = {n: replace(t, dtype="bf16") if t.kind == "parameter" else t for n, t in half.tensors.items()}
    whole = repeated(replace(half, tensors=tensors))
    assert {t.dtype for t in whole.tensors.values() if t.kind == "parameter"} == {"bf16"}


def changed(position: int, **changes: Any) -> AtenProgram:
    traced = program(4)
    calls = list(traced.calls)
    calls[position] = replace(calls[position], **changes)
    return replace(traced, calls=tuple(calls))


@pytest.mark.parametrize(
    "traced",
    [
        changed(5, target="aten.matmul"),
        changed(5, module="layers.1"),
        changed(5, module="layers.9"),
        changed(5, arguments={"input": Ref("add_2"), "weight": Ref("p_layers_0_weight")}),
        changed(5, arguments={"input": Ref("add"), "weight": Ref("p_layers_2_weight")}),
        changed(6, arguments={"self": Ref("linear_2"), "other": 2}),
        changed(7, arguments={"input": Ref("add_1"), "weight": Ref("p_layers_3_weight")}),
        changed(9, arguments={"self": Ref("add_2")}),
        replace(program(4), names=()),
        replace(program(4), released=None),
        replace(program(4), outputs=("relu", "add_3")),
        replace(program(4), released=dict(program(4).released or {}) | {"linear_1": 7}),
        replace(program(4), released=dict(program(4).released or {}) | {"add": 5}),
        replace(program(4), names=(*program(4).names[:5], "add_9", *program(4).names[5:])),
    ],
)
def test_what_is_not_equal_is_refused(traced: AtenProgram) -> None:
    with pytest.raises(UnequalError):
        repeated(traced)


def test_other_weights_are_refused() -> None:
    with pytest.raises(UnequalError):
        repeat(program(4), [STACK], weights(3), weights(WHOLE))
