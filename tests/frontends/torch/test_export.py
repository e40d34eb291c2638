"""PyTorch models through torch.export: the graph must hold what the module holds, and scale with the batch exactly."""

import logging

import pytest

torch = pytest.importorskip("torch")

from foretell.errors import InputError, ModelError
from foretell.frontends import ModelRequest, convert, parse_inputs
from foretell.frontends.torch.export import TRACE_BATCH, graph_from_program
from foretell.frontends.torch.program import TorchProgram
from foretell.graph import graph_costs, training_step

nn = torch.nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 4)
        self.idle = nn.Parameter(torch.zeros(7))

    def forward(self, x):
        y = torch.relu_(self.norm(self.conv(x)))
        return self.head(y.mean((2, 3)))


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, 16))
        self.qkv = nn.Linear(16, 48)

    def forward(self, x):
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        q, k, v = self.qkv(x).reshape(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return y.transpose(1, 2).reshape(x.shape)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 16, num_layers=2, bidirectional=True, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0]


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 8)
        self.head = nn.Linear(8, 50, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens):
        return self.head(self.table(tokens))


def on_meta(build, *arguments):
    with torch.device("meta"):  # not .to("meta"), which unties shared weights
        return build(*arguments)


def read(module, *inputs, batch_size=TRACE_BATCH, training=False, **named):
    def empty(shape, dtype=torch.float32):
        return torch.empty(batch_size, *shape, device="meta", dtype=dtype)

    program = TorchProgram(
        "net", module, tuple(empty(s) for s in inputs), {k: empty(s, torch.int64) for k, s in named.items()}
    )
    return graph_from_program(program, batch_size=batch_size, training=training)


CASES = {
    "net": (Net, [(3, 12, 12)], {}),
    "attention": (Attending, [(5, 16)], {}),
    "recurrent": (Recurrent, [(6, 8)], {}),
    "tied": (Tied, [], {"tokens": (9,)}),
}


@pytest.mark.parametrize("case", CASES)
def test_scaling_the_batch_gives_the_graph_of_that_batch(case):
    build, inputs, named = CASES[case]
    graph = read(on_meta(build), *inputs, **named)
    for batch_size in (1, 4):
        if case == "attention" and batch_size == 1:
            continue  # PyTorch folds more reshapes at batch 1; costs are compared below
        assert graph.with_batch(batch_size).hash == read(on_meta(build), *inputs, batch_size=batch_size, **named).hash
    assert graph_costs(graph.with_batch(1)).total.macs * TRACE_BATCH == graph_costs(graph).total.macs


@pytest.mark.parametrize("case", CASES)
def test_parameters_are_those_of_the_module(case):
    build, inputs, named = CASES[case]
    module = on_meta(build)
    expected = sum(p.numel() for p in module.parameters())
    graph = read(module, *inputs, **named)
    assert graph.parameter_count == expected
    assert graph_costs(graph).total.parameters == expected


def test_macs_by_hand():
    assert graph_costs(read(on_meta(Net), (3, 12, 12)).with_batch(1)).total.macs == 8 * 12 * 12 * 27 + 8 * 4
    tokens = 6
    assert (
        graph_costs(read(on_meta(Attending), (5, 16)).with_batch(1)).total.macs
        == tokens * 16 * 48 + 2 * 2 * tokens * tokens * 8
    )
    weights = 2 * (64 * 8 + 64 * 16) + 2 * (64 * 32 + 64 * 16)
    assert graph_costs(read(on_meta(Recurrent), (6, 8)).with_batch(1)).total.macs == 6 * weights


def test_modules_and_kinds_are_kept():
    graph = read(on_meta(Net), (3, 12, 12))
    assert [n.module for n in graph.nodes][:2] == ["conv", "norm"]
    kinds = {t.kind for t in graph.tensors.values()}
    assert {"parameter", "buffer", "input", "activation"} <= kinds


def test_one_attention_is_one_node():
    graph = read(on_meta(Attending), (5, 16))
    assert graph.operator_counts["Attention"] == 1
    assert "Softmax" not in graph.operator_counts


def test_training_exports_the_training_program():
    graph = read(on_meta(lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))), (4,), training=True)
    assert "DropoutMask" in graph.operator_counts
    step = training_step(graph)
    assert step.total.macs == 2 * graph_costs(graph).total.macs  # the only layer needs no gradient of its input


def test_no_weight_is_allocated():
    graph = read(on_meta(nn.Linear, 10**5, 10**5), (10**5,))
    assert graph.parameter_count == 10**10 + 10**5


def test_a_module_object_is_read_and_left_alone():
    module = nn.Linear(8, 4)
    graph = convert(ModelRequest(module, parse_inputs(["8"])))
    assert graph.parameter_count == 36
    assert module.weight.device.type == "cpu"


def test_dictionary_inputs():
    class Two(nn.Module):
        def forward(self, a, b):
            return a + b

    graph = convert(ModelRequest(Two(), parse_inputs(["a=4", "b=4"])))
    assert set(graph.inputs) == {"a", "b"}


def test_a_module_without_inputs_asks_for_them():
    with pytest.raises(InputError, match="--input"):
        convert(ModelRequest(nn.Linear(8, 4)))


def test_what_cannot_be_exported_is_one_clear_error(capfd):
    class Asks(nn.Module):
        def forward(self, x):
            return x if x.sum().item() > 0 else -x

    with pytest.raises(ModelError, match="depends on the values"):
        convert(ModelRequest(Asks(), parse_inputs(["4"])))
    assert capfd.readouterr().err == ""


def test_a_model_with_sizes_that_do_not_fit_is_one_sentence_and_no_log():
    log, records = logging.getLogger("torch._subclasses.fake_tensor"), list[logging.LogRecord]()
    handler, level = logging.Handler(), log.level
    handler.emit = records.append  # type: ignore[method-assign]
    log.addHandler(handler)
    try:
        with pytest.raises(ModelError, match=r"same reduction dim|cannot be multiplied"):
            convert(ModelRequest(nn.Sequential(nn.Linear(8, 4), nn.Linear(5, 2)), parse_inputs(["8"])))
    finally:
        log.removeHandler(handler)
    assert not records
    assert log.level == level
