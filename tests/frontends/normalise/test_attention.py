"""Attentions that are written out become one operator."""

from converted_models import counts, read

HEADS = "(float[N,2,6,4] q, float[N,2,6,4] k, float[N,2,6,4] v)"


def attention(scores: str, result: str = "y = MatMul(p, v)") -> str:
    return f"{HEADS} => (float[N,2,6,4] y) {{ {scores}\n p = Softmax<axis=-1>(s)\n {result}\n }}"


PLAIN = "t = Transpose<perm=[0,1,3,2]>(k)\n f = Constant<value_float=0.5>()\n m = MatMul(q, t)\n s = Mul(m, f)"


def test_the_product_is_scaled() -> None:
    graph = read(attention(PLAIN), {})
    assert counts(graph) == {"Attention": 1}
    assert graph.nodes[0].inputs == ("q", "k", "v")


def test_the_queries_are_scaled_and_shifted() -> None:
    scores = (
        "f = Constant<value_float=0.5>()\n z = Constant<value_float=0.0>()\n a = Mul(q, f)\n b = Add(a, z)\n"
        " t = Transpose<perm=[0,1,3,2]>(k)\n s = MatMul(b, t)"
    )
    graph = read(attention(scores), {})
    assert counts(graph) == {"Attention": 1}
    assert graph.nodes[0].inputs == ("q", "k", "v")


def test_a_mask_is_an_input() -> None:
    graph = read(attention(PLAIN.replace("s = Mul(m, f)", "n = Mul(m, f)\n s = Add(n, mask)")), {"mask": "float[6,6]"})
    assert counts(graph) == {"Attention": 1}
    assert graph.nodes[0].inputs == ("q", "k", "v", "mask")


def test_keys_that_lie_otherwise_are_turned() -> None:
    scores = "t = Transpose<perm=[0,2,3,1]>(l)\n s = MatMul(q, t)"
    text = attention(scores).replace("float[N,2,6,4] k", "float[N,6,2,4] l")
    graph = read(text, {})
    assert counts(graph) == {"Attention": 1, "Transpose": 1}
    turned = graph.nodes[0]
    assert (turned.op, graph.tensors[turned.outputs[0]].shape) == ("Transpose", (11, 2, 6, 4))


def test_keys_that_come_transposed_are_turned_back() -> None:
    text = attention("s = MatMul(q, l)").replace("float[N,2,6,4] k", "float[N,2,4,6] l")
    assert counts(read(text, {})) == {"Attention": 1, "Transpose": 1}


def test_scores_that_somebody_else_reads_stay() -> None:
    text = attention(PLAIN).replace("=> (float[N,2,6,4] y)", "=> (float[N,2,6,4] y, float[N,2,6,6] p)")
    assert "Attention" not in counts(read(text, {}))


def test_a_softmax_without_products_stays() -> None:
    assert counts(read(attention("s = Relu(q)", "y = Mul(p, v)"), {}))["Softmax"] == 1
