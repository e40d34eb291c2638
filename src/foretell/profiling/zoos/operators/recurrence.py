"""Profiling: recurrent layers at small batches and over many steps, and their cells."""

import random
from types import MappingProxyType
from typing import Any

from torch import nn

from foretell.profiling.zoos.operators.drawing import Drawn, First, Kinds, draw_size

_GATES = MappingProxyType({nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1, nn.LSTMCell: 4, nn.GRUCell: 3, nn.RNNCell: 1})


def _layer(draw: random.Random) -> Drawn:
    layers, both = draw.choice((1, 1, 1, 2, 3)), draw.random() < 0.35
    steps = draw.choice((1, 2, 5, 10, 16, 24, 32, 50, 64, 100, 128, 200, 256, 384, 512))
    inputs, hidden = draw_size(draw, 4, 1024), draw_size(draw, 16, 1024)
    kind = draw.choice((nn.LSTM, nn.LSTM, nn.LSTM, nn.GRU, nn.GRU, nn.RNN))
    first = draw.random() < 0.7
    more: dict[str, Any] = {"proj_size": max(8, hidden // 4)} if kind is nn.LSTM and draw.random() < 0.05 else {}
    more |= {"nonlinearity": draw.choice(("tanh", "relu"))} if kind is nn.RNN else {}
    layer = kind(inputs, hidden, layers, batch_first=first, bidirectional=both, bias=draw.random() < 0.95, **more)
    batch = draw.choice((1, 1, 1, 2, 3, 4, 4, 6, 8, 8, 12, 16, 16, 32, 64, 128))
    macs = batch * steps * layers * (1 + both) * _GATES[kind] * hidden * (inputs + hidden)
    return First(layer), [(batch, steps, inputs) if first else (steps, batch, inputs)], macs


class _Cell(nn.Module):  # type: ignore[misc]
    """A cell with the state that it gets from outside."""

    def __init__(self, cell: Any) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, operand: Any, *state: Any) -> Any:
        """The new state."""
        result = self.cell(operand, state if len(state) == 2 else state[0])
        return result[0] if isinstance(result, tuple) else result


def _cell(draw: random.Random) -> Drawn:
    kind = draw.choice((nn.LSTMCell, nn.LSTMCell, nn.GRUCell, nn.GRUCell, nn.RNNCell))
    inputs, hidden = draw_size(draw, 4, 1024), draw_size(draw, 16, 1024)
    batch = draw.choice((1, 1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096, 16384))
    states = 2 if kind is nn.LSTMCell else 1
    macs = batch * _GATES[kind] * hidden * (inputs + hidden)
    return _Cell(kind(inputs, hidden)), [(batch, inputs), *[(batch, hidden)] * states], macs


RECURRENCE: Kinds = MappingProxyType({_layer: 65, _cell: 35})
