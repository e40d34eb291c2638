"""Converted models get the form that PyTorch's have."""

import pytest

from converted_models import counts, proto, read, read_plainly
from foretell.frontends.converted.converter import graph_from_converted
from foretell.frontends.normalise.pipeline import mark_buffers, normalise_converted
from foretell.frontends.request import ModelRequest
from foretell.graph import graph_costs
from foretell.testing import tiny_graph, tiny_onnx

# a convolution of TensorFlow: channels last, batch normalisation written out, then a dense layer
TENSORFLOW = """
(float[N,8,8,3] x) => (float[N,5] y) {
  turned_w = Transpose<perm=[3,2,0,1]>(w)
  t = Transpose<perm=[0,3,1,2]>(x)
  c = Conv<pads=[1,1,1,1]>(t, turned_w)
  h = Transpose<perm=[0,2,3,1]>(c)
  eps = Constant<value_float=0.001>()
  v = Add(var, eps)
  s = Sqrt(v)
  r = Reciprocal(s)
  inv = Mul(r, gamma)
  scaled = Mul(h, inv)
  moved = Mul(mean, inv)
  shift = Sub(beta, moved)
  normed = Add(scaled, shift)
  act = Relu(normed)
  flat = Flatten(act)
  p = MatMul(flat, dense)
  y = Add(p, bias)
}
"""
WEIGHTS = {"w": "float[3,3,3,4]", "dense": "float[256,5]", "bias": "float[5]"}
WEIGHTS |= dict.fromkeys(("gamma", "beta", "mean", "var"), "float[4]")


def test_a_network_of_tensorflow_becomes_one_of_pytorch() -> None:
    graph = read(TENSORFLOW, WEIGHTS)
    assert [n.op for n in graph.nodes] == ["Conv", "BatchNormalization", "Relu", "Flatten", "Gemm"]
    assert graph.tensors["x"].shape == (11, 3, 8, 8)
    assert graph.parameter_count == 108 + 8 + 256 * 5 + 5
    norm = graph.nodes[1]
    assert [graph.tensors[i].kind for i in norm.inputs[1:]] == ["parameter", "parameter", "buffer", "buffer"]
    assert graph_costs(graph).total.macs == graph_costs(read_plainly(TENSORFLOW, WEIGHTS)).total.macs
    assert graph.with_batch(3).tensors["y"].shape == (3, 5)


def test_it_is_the_graph_that_pytorch_gives() -> None:
    torch = pytest.importorskip("torch")
    from foretell.workflows.workload import load_graph

    nn = torch.nn
    module = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(256, 5)
    )
    expected = graph_costs(load_graph(module.eval(), input_shape="3x8x8", batch_size=7)).total
    assert graph_costs(read(TENSORFLOW, WEIGHTS).with_batch(7)).total == expected


def test_weights_rearranged_gate_by_gate_are_weights() -> None:
    text = """
    (float[6,N,8] x) => (float[6,1,N,4] y) {
      axes = Constant<value_ints=[0]>()
      u = Unsqueeze(w, axes)
      one = Constant<value_ints=[1]>()
      from = Constant<value_ints=[0]>()
      middle = Constant<value_ints=[8]>()
      end = Constant<value_ints=[16]>()
      a = Slice(u, middle, end, one)
      b = Slice(u, from, middle, one)
      w2 = Concat<axis=1>(a, b)
      y, h, c = LSTM<hidden_size=4>(x, w2, r)
    }
    """
    graph = read(text, {"w": "float[16,8]", "r": "float[1,16,4]"})
    assert counts(graph) == {"LSTM": 1}
    assert graph.parameter_count == 16 * 8 + 16 * 4


def test_a_weight_that_others_read_as_well_is_left_alone() -> None:
    text = """
    (float[N,4] x) => (float[N,4] y, float[4,4] z) {
      t = Transpose<perm=[1,0]>(w)
      p = MatMul(x, t)
      y = MatMul(p, w)
      z = Relu(w)
    }
    """
    graph = read(text, {"w": "float[4,4]"})
    assert graph.parameter_count == 16
    assert counts(graph)["Transpose"] == 1


def test_identities_are_removed() -> None:
    text = """
    (float[N,4] x) => (float[N,4] y) {
      a = Identity(x)
      b = Concat<axis=1>(a)
      c = Relu(b)
      s = Constant<value_ints=[-1,4]>()
      d = Reshape(c, s)
      e = Tanh(d)
      y = Identity(e)
    }
    """
    graph = read(text, {})
    assert [n.op for n in graph.nodes] == ["Relu", "Tanh"]
    assert graph.outputs == ("y",)


def test_indices_that_may_count_from_the_end() -> None:
    text = """
    (int64[N,7] x) => (float[N,7,16] y) {
      zero = Constant<value_int=0>()
      size = Constant<value_int=50>()
      low = Less(x, zero)
      up = Add(x, size)
      i = Where(low, up, x)
      y = Gather(w, i)
    }
    """
    assert counts(read(text, {"w": "float[50,16]"})) == {"Gather": 1}
    assert counts(read(text.replace("Less", "Greater"), {"w": "float[50,16]"}))["Where"] == 1


def test_untrained_weights_are_buffers() -> None:
    graph = mark_buffers(tiny_graph(), frozenset({"conv.weight", "nobody"}))
    assert graph.tensors["conv.weight"].kind == "buffer"
    assert graph.parameter_count < tiny_graph().parameter_count


def test_a_plain_model_is_not_changed_in_what_it_costs() -> None:
    from foretell.frontends.onnx.file import graph_from_proto

    graph = graph_from_proto(tiny_onnx(), ModelRequest(None), "m")
    again = normalise_converted(graph)
    assert graph_costs(again).total == graph_costs(graph).total
    assert again.batch_size == graph.batch_size
    assert normalise_converted(again).hash == again.hash


def test_a_converted_model_is_read_and_normalised_at_once() -> None:
    graph = graph_from_converted(proto(TENSORFLOW, WEIGHTS), ModelRequest(None), "m")
    assert graph.hash == read(TENSORFLOW, WEIGHTS).hash


def test_weights_that_are_halved_and_doubled_many_times_are_walked_once() -> None:
    """Every way from the result to the weight would be 2 ** 60 of them."""
    steps = "".join(
        f"d{i} = Concat<axis=0>(w{i}, w{i})\nw{i + 1}, r{i} = Split<axis=0,num_outputs=2>(d{i})\n" for i in range(60)
    )
    text = f"(float[N,4] x) => (float[N,4] y) {{ w0 = Identity(w)\n {steps} y = Mul(x, w60) }}"
    assert counts(read(text, {"w": "float[4]"}))["Mul"] == 1
