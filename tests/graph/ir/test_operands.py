"""A node of a known operator has the operands that its rules read, or is refused."""

from dataclasses import replace

import pytest

from foretell.errors import GraphError
from foretell.graph import Graph, Node, Tensor
from foretell.graph.ir.operands import check_operands
from foretell.testing import tiny_graph


def graph(op: str, inputs: int, outputs: tuple[str, ...] = ("y",), domain: str = "", **attributes: int) -> Graph:
    names = [f"x{i}" for i in range(inputs)]
    tensors = {n: Tensor(n, (2, 2), kind="input") for n in names} | {n: Tensor(n, (2, 2)) for n in outputs if n}
    node = Node("n", op, tuple(names), outputs, attributes, domain)
    return Graph.build("g", [node], tensors, names, [n for n in outputs if n])


def test_what_a_rule_reads_must_be_there() -> None:
    check_operands(tiny_graph())
    for op, inputs in (("MatMul", 1), ("Relu", 0), ("Conv", 1), ("QLinearConv", 3), ("Attention", 0), ("Concat", 0)):
        with pytest.raises(GraphError, match=rf"'n' \({op}\) lacks an input: it has {inputs}"):
            check_operands(graph(op, inputs))
    with pytest.raises(GraphError, match="lacks an input"):
        check_operands(graph("LSTM", 2, hidden_size=4))
    for op, inputs in (("MatMul", 2), ("Relu", 1), ("Range", 0), ("Einsum", 1), ("LSTM", 1)):
        check_operands(graph(op, inputs))


def test_only_some_operators_may_leave_out_their_first_output() -> None:
    with pytest.raises(GraphError, match="lacks its first output"):
        check_operands(graph("Dropout", 1, ("", "mask")))
    check_operands(graph("LSTM", 3, ("", "state"), hidden_size=4))


def test_foreign_operators_and_bodies() -> None:
    check_operands(graph("Mystery", 0, ("", "y"), domain="org.example"))
    loop = graph("Loop", 1)
    body = graph("MatMul", 1)
    node = Node("n", "Loop", ("x0",), ("y",), bodies=(body,))
    with pytest.raises(GraphError, match="MatMul"):
        check_operands(Graph.build("g", [node], loop.tensors, ["x0"], ["y"]))


@pytest.mark.parametrize("name", ["directions", "group", "layers", "num_groups"])
def test_what_is_counted_is_there_at_least_once(name: str) -> None:
    check_operands(graph("LSTM", 1, **{name: 1}))
    for value in (0, -3):
        with pytest.raises(GraphError, match=f"{name} = {value}; at least 1 is needed"):
            check_operands(graph("LSTM", 1, **{name: value}))


def test_a_loop_runs_no_fewer_times_than_never() -> None:
    check_operands(graph("Loop", 1, trips=0))
    with pytest.raises(GraphError, match="trips = -1; at least 0 is needed"):
        check_operands(graph("Loop", 1, trips=-1))


@pytest.mark.parametrize("flat", ["x0", "y"])
def test_a_convolution_has_channels(flat: str) -> None:
    whole = graph("Conv", 2)
    check_operands(whole)
    with pytest.raises(GraphError, match=rf"axis of channels; '{flat}' has shape \(7,\)"):
        check_operands(replace(whole, tensors={**whole.tensors, flat: Tensor(flat, (7,))}))


def test_an_attention_has_channels() -> None:
    whole = graph("Attention", 3)
    check_operands(whole)
    with pytest.raises(GraphError, match=r"axis of channels; 'y' has shape \(\)"):
        check_operands(replace(whole, tensors={**whole.tensors, "y": Tensor("y", ())}))
