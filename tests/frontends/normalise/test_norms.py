"""Norms that are written out become one operator."""

import pytest

from converted_models import counts, read

KERAS = """
(float[N,6,16] x) => (float[N,6,16] y) {
  axes = Constant<value_ints=[-1]>()
  eps = Constant<value_float=0.001>()
  mean = ReduceMean(x, axes)
  centred = Sub(x, mean)
  squared = Mul(centred, centred)
  var = ReduceMean(squared, axes)
  safe = Add(var, eps)
  root = Sqrt(safe)
  r = Reciprocal(root)
  inv = Mul(r, gamma)
  big = Mul(x, inv)
  less = Neg(mean)
  small = Mul(less, inv)
  shift = Add(small, beta)
  y = Add(big, shift)
}
"""
FAST = """
(float[N,6,16] x) => (float[N,6,16] y) {
  axes = Constant<value_ints=[-1]>()
  zero = Constant<value_float=0.0>()
  eps = Constant<value_float=0.001>()
  mean = ReduceMean(x, axes)
  centred = Sub(x, mean)
  squared = Mul(x, x)
  second = ReduceMean(squared, axes)
  square = Mul(mean, mean)
  raw = Sub(second, square)
  var = Max(raw, zero)
  safe = Add(var, eps)
  root = Sqrt(safe)
  n = Div(centred, root)
  s = Mul(n, gamma)
  y = Add(s, beta)
}
"""
RMS = """
(float[N,6,16] x) => (float[N,6,16] y) {
  axes = Constant<value_ints=[-1]>()
  two = Constant<value_float=2.0>()
  eps = Constant<value_float=0.001>()
  squared = Pow(x, two)
  mean = ReduceMean(squared, axes)
  safe = Add(mean, eps)
  root = Sqrt(safe)
  n = Div(x, root)
  y = Mul(n, gamma)
}
"""
BATCH = """
(float[N,4,8,8] x) => (float[N,4,8,8] y) {
  eps = Constant<value_float=0.001>()
  c = Sub(x, mean)
  v = Add(var, eps)
  s = Sqrt(v)
  r = Reciprocal(s)
  m = Mul(r, gamma)
  n = Mul(c, m)
  y = Add(n, beta)
}
"""


@pytest.mark.parametrize(("text", "expected"), [(KERAS, "LayerNormalization"), (FAST, "LayerNormalization")])
def test_layer_norms(text: str, expected: str) -> None:
    graph = read(text, {"gamma": "float[16]", "beta": "float[16]"})
    assert counts(graph) == {expected: 1}
    assert graph.parameter_count == 32
    assert graph.nodes[0].inputs[0] == "x"


def test_without_a_mean_it_is_an_rms_norm() -> None:
    graph = read(RMS, {"gamma": "float[16]"})
    assert counts(graph) == {"RMSNormalization": 1}
    assert graph.parameter_count == 16


def test_operators_after_the_norm_are_not_joined() -> None:
    text = KERAS.replace(
        "y = Add(big, shift)", "n = Add(big, shift)\n  half = Constant<value_float=0.5>()\n  y = Mul(n, half)"
    )
    assert counts(read(text, {"gamma": "float[16]", "beta": "float[16]"})) == {"LayerNormalization": 1, "Mul": 1}


def test_a_residual_around_it_stays() -> None:
    text = KERAS.replace("y = Add(big, shift)", "n = Add(big, shift)\n  e = Exp(n)\n  y = Add(e, x)")
    operators = counts(read(text, {"gamma": "float[16]", "beta": "float[16]"}))
    assert operators == {"Add": 1, "Exp": 1, "LayerNormalization": 1}


def test_a_norm_whose_inner_tensor_is_read_elsewhere_is_not_joined() -> None:
    text = KERAS.replace("=> (float[N,6,16] y)", "=> (float[N,6,16] y, float[N,6,16] centred)")
    assert "LayerNormalization" not in counts(read(text, {"gamma": "float[16]", "beta": "float[16]"}))


def test_a_batch_norm_with_channels_first() -> None:
    shaped = dict.fromkeys(("gamma", "beta", "mean", "var"), "float[1,4,1,1]")
    graph = read(BATCH, shaped, frozenset({"mean", "var"}))
    assert counts(graph) == {"BatchNormalization": 1}
    assert [graph.tensors[i].shape for i in graph.nodes[0].inputs[1:]] == [(4,)] * 4
    assert graph.parameter_count == 8


def test_the_mean_is_recognised_by_its_subtraction() -> None:
    graph = read(BATCH, dict.fromkeys(("gamma", "beta", "mean", "var"), "float[1,4,1,1]"))
    assert graph.parameter_count == 8
    assert graph.nodes[0].inputs[3].startswith("mean")


def test_a_square_root_outside_a_norm_stays() -> None:
    text = "(float[N,4] x) => (float[N,4] y) {\n s = Sqrt(x)\n y = Mul(s, w)\n}"
    assert counts(read(text, {"w": "float[4]"})) == {"Mul": 1, "Sqrt": 1}
