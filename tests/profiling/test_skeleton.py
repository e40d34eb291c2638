import math

import pytest

torch = pytest.importorskip("torch")

from foretell.profiling.skeleton import LARGE, Weights, is_large, lazy_initialisation


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(100, 64)
        self.norm = torch.nn.BatchNorm1d(64)
        self.lstm = torch.nn.LSTM(64, 64, batch_first=True)
        self.head = torch.nn.Linear(64, 100, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("index", torch.arange(8))
        self.register_buffer("table", torch.linspace(0, 1, LARGE).reshape(64, -1))

    def forward(self, tokens):
        return self.head(self.lstm(self.norm(self.embed(tokens).transpose(1, 2)).transpose(1, 2))[0])


def test_large_weights_are_not_filled_while_building():
    calls = []
    real = torch.Tensor.normal_

    with lazy_initialisation():
        big, small = torch.full((64, 64), 7.0), torch.full((8,), 7.0)
        for tensor in (big, small):
            torch.nn.init.normal_(tensor)
            calls.append(bool((tensor == 7.0).all()))
        torch.nn.init.trunc_normal_(big)
        torch.nn.init.kaiming_uniform_(big)
        torch.nn.init.orthogonal_(big)
        calls.append(bool((big == 7.0).all()))
    assert calls == [True, False, True]
    assert torch.Tensor.normal_ is real
    assert not (torch.nn.init.normal_(big) == 7.0).all()


def test_initialisation_is_restored_after_an_error():
    before = torch.nn.init.orthogonal_
    with pytest.raises(ValueError, match="no model"), lazy_initialisation():
        raise ValueError("no model")
    assert torch.nn.init.orthogonal_ is before
    assert "uniform_" not in vars(torch.Tensor)


def test_weights_are_drawn_with_unit_gain_and_the_rest_is_kept():
    with lazy_initialisation():
        model = Tied().eval()
    weights = Weights(model, cast_buffers=True)
    weights.place("cpu", torch.float32)
    assert model.head.weight is model.embed.weight
    assert float(model.lstm.weight_hh_l0.detach().std()) == pytest.approx(1 / math.sqrt(64), rel=0.1)
    assert torch.equal(model.norm.weight.detach(), torch.ones(64))
    assert torch.equal(model.norm.running_var, torch.ones(64))
    assert torch.equal(model.index, torch.arange(8))
    assert float(model.table[-1, -1]) == 1.0  # a large buffer is copied, never drawn
    assert torch.isfinite(model(torch.randint(0, 100, (2, 5)))).all()


def test_precision_changes_and_comes_back():
    model = Tied().eval()
    bias = model.lstm.bias_hh_l0.detach().clone()
    weights = Weights(model, cast_buffers=True)
    for dtype in (torch.float32, torch.bfloat16, torch.float32):
        weights.place("cpu", dtype)
        kinds = {parameter.dtype for parameter in model.parameters()} | {model.table.dtype}
        assert kinds == {dtype}
        assert model.index.dtype == torch.int64
        assert torch.isfinite(model(torch.randint(0, 100, (2, 5)))).all()
    assert torch.equal(model.lstm.bias_hh_l0.detach(), bias)
    weights.release()
    assert weights.dtype is None
    assert len(list(model.parameters())) == 7


def test_buffers_of_some_zoos_keep_their_precision():
    model = Tied()
    Weights(model, cast_buffers=False).place("cpu", torch.float16)
    assert model.table.dtype == torch.float32
    assert model.embed.weight.dtype == torch.float16


def test_what_counts_as_large():
    assert is_large(torch.empty(64, 64))
    assert not is_large(torch.empty(LARGE))
    assert not is_large(torch.empty(8, 8))
    assert not is_large(torch.empty(64, 64, dtype=torch.int64))


def test_weights_of_images_change_their_layout_and_come_back():
    model = torch.nn.Sequential(torch.nn.Conv2d(8, 64, 3), torch.nn.Linear(8, 8))
    weights = Weights(model, cast_buffers=True)
    weights.place("cpu", torch.float32, channels_last=True)
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert model[1].weight.is_contiguous()
    weights.place("cpu", torch.float32)
    assert model[0].weight.is_contiguous()
