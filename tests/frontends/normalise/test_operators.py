"""Activations, biases and linear layers that are written out become one operator."""

import pytest

from converted_models import counts, read

ACTIVATIONS = {
    "Silu": "s = Sigmoid(x)\n y = Mul(x, s)",
    "Silu by Keras": "one = Constant<value_float=1.0>()\n b = Mul(one, x)\n s = Sigmoid(b)\n y = Mul(x, s)",
    "Gelu": "q = Constant<value_float=1.4>()\n d = Div(x, q)\n e = Erf(d)\n one = Constant<value_float=1.0>()\n"
    " a = Add(e, one)\n m = Mul(x, a)\n h = Constant<value_float=0.5>()\n y = Mul(m, h)",
    "Gelu by erfc": "h = Constant<value_float=0.5>()\n m = Mul(h, x)\n n = Neg(x)\n q = Constant<value_float=0.7>()\n"
    " d = Mul(n, q)\n e = Erf(d)\n one = Constant<value_float=1.0>()\n f = Sub(one, e)\n y = Mul(m, f)",
    "Gelu by tanh": "t = Constant<value_float=3.0>()\n p = Pow(x, t)\n c = Constant<value_float=0.04>()\n"
    " s = Mul(c, p)\n a = Add(x, s)\n r = Constant<value_float=0.8>()\n i = Mul(r, a)\n h = Tanh(i)\n"
    " one = Constant<value_float=1.0>()\n u = Add(one, h)\n f = Constant<value_float=0.5>()\n"
    " g = Mul(f, u)\n y = Mul(x, g)",
    "HardSwish": "t = Constant<value_float=3.0>()\n a = Add(x, t)\n z = Constant<value_float=0.0>()\n"
    " s = Constant<value_float=6.0>()\n c = Clip(a, z, s)\n d = Div(c, s)\n y = Mul(x, d)",
    "HardSwish by sigmoid": "s = HardSigmoid(x)\n y = Mul(x, s)",
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str) -> None:
    graph = read(f"(float[N,8] x) => (float[N,8] y) {{ {ACTIVATIONS[name]}\n }}", {})
    assert counts(graph) == {name.split()[0]: 1}
    assert graph.nodes[0].inputs == ("x",)


@pytest.mark.parametrize("body", ["s = Sigmoid(x)\n y = Mul(w, s)", "e = Erf(x)\n y = Mul(e, w)", "y = Sigmoid(x)"])
def test_formulas_that_only_resemble_an_activation_stay(body: str) -> None:
    operators = counts(read(f"(float[N,8] x) => (float[N,8] y) {{ {body}\n }}", {"w": "float[8]"}))
    assert not {"Silu", "Gelu", "HardSwish"} & set(operators)


def test_a_gate_of_another_tensor_is_no_silu() -> None:
    text = "(float[N,8] x, float[N,8] z) => (float[N,8] y) { s = Sigmoid(z)\n y = Mul(x, s)\n }"
    assert counts(read(text, {})) == {"Mul": 1, "Sigmoid": 1}


def test_a_product_and_its_bias_are_a_linear_layer() -> None:
    text = "(float[N,6,8] x) => (float[N,6,4] y) { p = MatMul(x, w)\n y = Add(p, b)\n }"
    graph = read(text, {"w": "float[8,4]", "b": "float[4]"})
    assert counts(graph) == {"Gemm": 1}
    assert [graph.tensors[i].shape for i in graph.nodes[0].inputs[1:]] == [(4, 8), (4,)]
    assert graph.nodes[0].attributes == {"transB": 1}


def test_a_bias_behind_a_reshape_belongs_to_it() -> None:
    text = """
    (float[N,6,8] x) => (float[N,6,2,2] y) {
      p = MatMul(x, w)
      s = Constant<value_ints=[-1,6,2,2]>()
      r = Reshape(p, s)
      y = Add(r, b)
    }
    """
    graph = read(text, {"w": "float[8,4]", "b": "float[2,2]"})
    assert [n.op for n in graph.nodes] == ["Gemm", "Reshape"]
    assert graph.parameter_count == 36


def test_a_sum_with_a_table_is_no_bias() -> None:
    text = "(float[N,4,8] x) => (float[N,4,4] y) { p = MatMul(x, w)\n y = Add(p, b)\n }"
    assert counts(read(text, {"w": "float[8,4]", "b": "float[4,4]"})) == {"Add": 1, "Gemm": 1}
    assert counts(read(text, {"w": "float[8,4]", "b": "float[4,1]"})) == {"Add": 1, "Gemm": 1}


def test_a_product_of_two_tensors_stays_one() -> None:
    text = "(float[N,6,8] x, float[N,8,4] z) => (float[N,6,4] y) { y = MatMul(x, z)\n }"
    assert counts(read(text, {})) == {"MatMul": 1}


@pytest.mark.parametrize("bias", ["float[1,4,1,1]", "float[4,1,1]"])
def test_a_bias_added_to_a_convolution(bias: str) -> None:
    text = "(float[N,3,8,8] x) => (float[N,4,6,6] y) { c = Conv(x, w)\n y = Add(c, b)\n }"
    graph = read(text, {"w": "float[4,3,3,3]", "b": bias})
    assert counts(graph) == {"Conv": 1}
    assert graph.tensors[graph.nodes[0].inputs[2]].shape == (4,)


def test_a_row_added_to_a_convolution_is_no_bias() -> None:
    text = "(float[N,3,8,6] x) => (float[N,4,6,4] y) { c = Conv(x, w)\n y = Add(c, b)\n }"
    assert counts(read(text, {"w": "float[4,3,3,3]", "b": "float[4]"})) == {"Add": 1, "Conv": 1}


def test_limits_and_means_as_jax_writes_them() -> None:
    head = (
        "(float[N,8,4] x) => (float[N,{}] y) {{ z = Constant<value_float=0.0>()\n six = Constant<value_float=6.0>()\n"
    )
    assert counts(read(head.format("8,4") + " y = Max(x, z)\n }", {})) == {"Relu": 1}
    assert counts(read(head.format("8,4") + " r = Max(x, z)\n y = Min(r, six)\n }", {})) == {"Clip": 1}
    total = " axes = Constant<value_ints=[1]>()\n s = ReduceSum<keepdims=0>(x, axes)\n y = Div(s, six)\n }"
    graph = read(head.format("4") + total, {})
    assert counts(graph) == {"ReduceMean": 1}
    assert graph.nodes[0].attributes["axes"] == (1,)
    assert counts(read(head.format("8,4") + " y = Max(x, w)\n }", {"w": "float[4]"})) == {"Max": 1}
