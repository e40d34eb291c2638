"""A loop over time with a known cell is a recurrent layer."""

from typing import Any

import numpy as np
import onnx.parser

from converted_models import counts
from foretell.frontends.normalise.pipeline import normalise_converted
from foretell.frontends.onnx.file import graph_from_proto
from foretell.frontends.request import ModelRequest
from foretell.graph import Graph, graph_costs

STEPS, WIDTH, SIZE = 6, 5, 4
LSTM = """
  i, f, g, o = Split<axis=1, num_outputs=4>(gates)
  si = Sigmoid(i)
  sf = Sigmoid(f)
  so = Sigmoid(o)
  tg = Tanh(g)
  kept = Mul(sf, c_in)
  new = Mul(si, tg)
  c_out = Add(kept, new)
  tc = Tanh(c_out)
  h_out = Mul(so, tc)
"""
GRU = """
  r, z, n = Split<axis=1, num_outputs=3>(gates)
  sr = Sigmoid(r)
  sz = Sigmoid(z)
  reset = Mul(sr, n)
  tn = Tanh(reset)
  c_out = Mul(sz, c_in)
  h_out = Add(c_out, tn)
"""


def looped(cell: str, gates: int) -> Graph:
    rows = gates * SIZE
    text = f"""
    <ir_version: 8, opset_import: ["" : 20]>
    m (float[{STEPS},N,{WIDTH}] x, float[N,{SIZE}] h0, float[N,{SIZE}] c0) => (float[{STEPS},N,{SIZE}] y) {{
      trips = Constant<value_int={STEPS}>()
      go = Constant<value = bool {{1}}>()
      h, c, y = Loop(trips, go, h0, c0) <body = step (int64 t, bool on, float[N,{SIZE}] h_in, float[N,{SIZE}] c_in)
        => (bool on_out, float[N,{SIZE}] h_out, float[N,{SIZE}] c_out, float[N,{SIZE}] y_out) {{
        on_out = Identity(on)
        now = Gather<axis=0>(x, t)
        a = MatMul(now, w)
        b = MatMul(h_in, u)
        s = Add(a, b)
        gates = Add(s, bias)
        {cell}
        y_out = Identity(h_out)
      }}>
    }}
    """
    model: Any = onnx.parser.parse_model(text)
    shapes = {"w": (WIDTH, rows), "u": (SIZE, rows), "bias": (rows,)}
    for name, shape in shapes.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(shape, np.float32), name))
    return graph_from_proto(model, ModelRequest(None), "m")


def test_an_lstm_and_a_gru() -> None:
    for cell, gates, op in ((LSTM, 4, "LSTM"), (GRU, 3, "GRU")):
        plain = looped(cell, gates)
        graph = normalise_converted(plain)
        assert counts(graph) == {op: 1, "Squeeze": 1}
        assert graph.parameter_count == plain.parameter_count == gates * SIZE * (WIDTH + SIZE + 1)
        assert graph_costs(graph).total.macs == graph_costs(plain).total.macs
        assert graph.with_batch(3).tensors["y"].shape == (STEPS, 3, SIZE)


def test_any_other_cell_stays_a_loop() -> None:
    assert counts(normalise_converted(looped(LSTM.replace("so = Sigmoid(o)", "so = Relu(o)"), 4))) == {"Loop": 1}
    assert counts(normalise_converted(looped(LSTM + "\n extra = Exp(h_in)", 4))) == {"Loop": 1}
