"""Every operator of ONNX is costed, declared free, or unknown out loud: nothing is silently zero."""

import onnx
import pytest

from foretell.graph import Node, graph_costs
from foretell.graph.ir.operators import OPERATORS, lookup
from foretell.testing import chain, one_node
from foretell.testing.tiny import Shape

NEWEST_OPSET = 23
COSTED = {"elementwise", "reduction", "movement", "generator", "normalisation", "pooling", "gather", "scatter", "sort"}
MULTIPLYING = {"contraction", "attention", "recurrent"}
# operands of contractions that are not a plain product of two matrices
OPERANDS: dict[str, list[Shape | None]] = {
    "ConvTranspose": [(1, 2, 4, 4), (2, 2, 3, 3)],
    "QLinearConv": [(1, 2, 4, 4), (), (), (2, 2, 3, 3), (), (), (), ()],
    "Bilinear": [(2, 4), (2, 4), (4, 4, 4)],
    "MoE": [(2, 4), (2, 4, 4)],
    "ContribAttention": [(2, 4, 4), (4, 12)],
    "PackedAttention": [(8, 4), (4, 12)],
    "LSTM": [(3, 2, 4), (1, 16, 4), (1, 16, 4)],
    "GRU": [(3, 2, 4), (1, 12, 4), (1, 12, 4)],
    "RNN": [(3, 2, 4), (1, 4, 4), (1, 4, 4)],
    "LSTMCell": [(2, 4), (2, 4), (2, 4), (16, 4), (16, 4)],
    "GRUCell": [(2, 4), (2, 4), (12, 4), (12, 4)],
    "RNNCell": [(2, 4), (2, 4), (4, 4), (4, 4)],
}


def schemas(domain: str) -> dict[str, int]:
    """Every operator of a domain and the opset in which it first appeared."""
    first: dict[str, int] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == domain:
            first[schema.name] = min(schema.since_version, first.get(schema.name, schema.since_version))
    return first


def test_every_operator_of_onnx_is_entered() -> None:
    known = {name for name, since in schemas("").items() if since <= NEWEST_OPSET}
    assert len(known) > 190
    assert known <= set(OPERATORS)


@pytest.mark.parametrize("domain", ["ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training", "org.example"])
def test_operators_of_other_domains_are_unknown_with_their_share(domain: str) -> None:
    for name in schemas(domain) or ("Conv", "Reshape", "Shape"):
        nodes = [Node("a", "Relu", ("x",), ("y",)), Node("b", name, ("y",), ("z",), domain=domain)]
        table = graph_costs(chain(nodes, {"x": (4, 8), "y": (4, 8), "z": (4, 8)}, ["x"], ["z"]))
        assert table.unknown_operators == {f"{domain}.{name}": 0.5}
        assert table.coverage == 0.5
        assert table.nodes[1].flops > 0


@pytest.mark.parametrize("op", sorted(op for op, entry in OPERATORS.items() if entry.kind in COSTED))
def test_operators_that_compute_move_bytes(op: str) -> None:
    shape = (2, 4, 4)
    cost = graph_costs(one_node(op, [shape], [shape])).nodes[0]
    assert cost.bytes > 0
    assert cost.launches == 1
    assert cost.macs == 0
    if OPERATORS[op].flops:
        assert cost.flops > 0 or op == "Resize"  # nearest neighbour computes nothing


@pytest.mark.parametrize("op", sorted(op for op, entry in OPERATORS.items() if entry.kind in MULTIPLYING))
def test_contractions_have_macs(op: str) -> None:
    kind = OPERATORS[op].kind
    plain: list[Shape | None] = [(1, 2, 4, 4)] * 3 if kind == "attention" else [(2, 4, 4), (2, 4, 4)]
    inputs = OPERANDS.get(op, [(1, 2, 6, 6), (2, 2, 3, 3)] if "Conv" in op else plain)
    attributes: dict[str, int | str] = {"num_heads": 2} if "Attention" in op and op in OPERANDS else {}
    if op in ("LSTM", "GRU", "RNN"):
        attributes = {"hidden_size": 4}
    if op == "Einsum":
        attributes = {"equation": "bij,bjk->bik"}
    cost = graph_costs(one_node(op, inputs, [(1, 2, 4, 4)], **attributes)).nodes[0]
    assert cost.macs > 0
    assert cost.flops >= 2 * cost.macs
    assert cost.bytes > 0


@pytest.mark.parametrize("op", sorted(op for op, entry in OPERATORS.items() if entry.kind in ("free", "view")))
def test_views_cost_nothing(op: str) -> None:
    attributes = {"perm": (0, 1)} if op == "Transpose" else {}
    cost = graph_costs(one_node(op, [(2, 4)], [(2, 4)], **attributes)).nodes[0]
    assert cost.bytes == cost.flops == cost.launches == 0


def test_every_entry_is_of_a_tested_kind() -> None:
    assert {entry.kind for entry in OPERATORS.values()} == COSTED | MULTIPLYING | {"free", "view", "control"}
    assert lookup("Conv", "com.microsoft").kind == "contraction"
