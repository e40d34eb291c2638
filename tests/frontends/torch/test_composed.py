"""What PyTorch composes is in the graph as a GPU runs it."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from foretell.frontends.torch.export import graph_from_program
from foretell.frontends.torch.program import TorchProgram
from foretell.graph import Graph, graph_costs


def read(make, *shapes, training=False, batch=11) -> Graph:
    with torch.device("meta"):
        module, args = make(), tuple(torch.empty(batch, *shape) for shape in shapes)
    return graph_from_program(TorchProgram("net", module, args, {}), batch_size=batch, training=training)


def launched(graph: Graph) -> list[str]:
    return [node.op for node, cost in zip(graph.nodes, graph_costs(graph).nodes, strict=True) if cost.launches]


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(8, 16)

    def forward(self, step, state):
        return self.cell(step, (state, state))


LAYER = ["Gemm", "Attention", "Gemm", "Add", "LayerNormalization", "Gemm", "Gemm", "Add", "LayerNormalization"]


def test_an_encoder_layer_copies_nothing_in_evaluation_mode():
    assert launched(read(lambda: nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), (16, 64))) == LAYER
    first = read(lambda: nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, norm_first=True), (16, 64))
    assert sorted(launched(first)) == sorted(LAYER)
    assert launched(first)[0] == "LayerNormalization"


@pytest.mark.parametrize(
    ("slow", "op"),
    [({"nhead": 3}, "Contiguous"), ({"batch_first": False}, "Contiguous"), ({"activation": torch.tanh}, "Tanh")],
)
def test_other_encoder_layers_run_as_their_code_shows(slow, op):
    options = {"nhead": 4, "batch_first": True, **slow}
    graph = read(lambda: nn.TransformerEncoderLayer(60, dim_feedforward=128, **options), (16, 60))
    assert op in launched(graph)


def test_training_takes_no_fast_path():
    graph = read(lambda: nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), (16, 64), training=True)
    assert "Relu" in launched(graph)


def test_the_modules_keep_their_own_forward_afterwards():
    before = nn.TransformerEncoderLayer.forward, nn.MultiheadAttention.forward
    read(lambda: nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), (16, 64))
    assert (nn.TransformerEncoderLayer.forward, nn.MultiheadAttention.forward) == before


class Attends(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.attention, self.options = nn.MultiheadAttention(64, 4, batch_first=True), options

    def forward(self, tokens):
        return self.attention(tokens, tokens, tokens, **self.options)[0]


def test_an_attention_that_returns_its_weights_is_not_fused():
    assert launched(read(lambda: Attends(need_weights=False), (16, 64))) == ["Gemm", "Attention", "Gemm"]
    written_out = launched(read(Attends, (16, 64)))
    assert "Attention" not in written_out
    assert written_out.count("MatMul") == 2


def test_the_fast_path_computes_what_the_module_computes():
    """On the host, with real numbers: only the copies differ."""
    from foretell.frontends.torch.composed import fast_paths

    torch.manual_seed(0)
    tokens = torch.randn(2, 5, 16)
    for first in (True, False):
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=first).eval()
        with torch.no_grad():
            expected = layer(tokens)
            with fast_paths():
                assert torch.allclose(layer(tokens), expected, atol=1e-5)


def test_a_cell_is_two_products_and_one_kernel():
    graph = read(lambda: nn.GRUCell(8, 16), (8,), (16,))
    assert launched(graph) == ["Gemm", "Gemm", "GRUCell"]
    assert graph_costs(graph).total.macs == 11 * 3 * 16 * (8 + 16)
    assert launched(read(lambda: nn.RNNCell(8, 16), (8,), (16,))) == ["Gemm", "Gemm", "Add", "Tanh"]
    lstm = read(Cell, (8,), (16,))
    assert launched(lstm) == ["Gemm", "Gemm", "LSTMCell"]


@pytest.mark.parametrize(
    ("equation", "shapes", "ops", "macs"),
    [
        ("bi,bij,bj->b", [(4,), (4, 5), (5,)], ["Einsum", "Einsum"], 11 * (20 + 4)),
        ("bi,bij,bj->bij", [(4,), (4, 5), (5,)], ["Mul", "Mul"], 0),
        ("bi,bj->bij", [(4,), (5,)], ["Mul"], 0),
        ("bji,bi->bij", [(5, 4), (4,)], ["Mul"], 0),
        ("bij,bjk->bik", [(4, 5), (5, 6)], ["Einsum"], 11 * 120),
    ],
)
def test_einsum_contracts_the_cheapest_pair_first(equation, shapes, ops, macs):
    graph = read(lambda: Function(lambda *args: torch.einsum(equation, *args)), *shapes)
    assert launched(graph) == ops
    assert graph_costs(graph).total.macs == macs
    assert graph.with_batch(3).hash == read(
        lambda: Function(lambda *args: torch.einsum(equation, *args)), *shapes, batch=3
    ).hash  # fmt: skip


def test_a_bag_reads_a_row_for_each_index():
    with torch.device("meta"):
        bag, indices = nn.EmbeddingBag(1000, 32), torch.zeros(11, 20, dtype=torch.int64)
    graph = graph_from_program(TorchProgram("bag", bag, (indices,), {}), batch_size=11)
    node = next(i for i, node in enumerate(graph.nodes) if node.op == "EmbeddingBag")
    assert graph_costs(graph).nodes[node].bytes_read >= 11 * 20 * (32 * 4 + 8)


def test_the_batch_survives_attention_with_the_sequence_first():
    def attention():
        return nn.TransformerEncoderLayer(60, 3, 128, batch_first=True)

    graph = read(attention, (16, 60)).with_batch(4)
    assert graph.hash == read(attention, (16, 60), batch=4).hash
