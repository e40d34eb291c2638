"""An Einsum is what it computes."""

import pytest

from converted_models import counts, read, read_plainly
from foretell.graph import graph_costs


def einsum(equation: str, left: str, right: str, result: str) -> str:
    head = f"(float[N,{left}] x, float[N,{right}] z) => (float[N,{result}] y)"
    return f'{head} {{ y = Einsum<equation="{equation}">(x, z)\n }}'


@pytest.mark.parametrize(
    ("equation", "left", "right", "result", "transposes"),
    [
        ("aecd,abcd->acbe", "5,2,4", "6,2,4", "2,6,5", 2),
        ("acbe,aecd->abcd", "2,6,5", "5,2,4", "6,2,4", 2),
        ("abc,acd->abd", "6,5", "5,4", "6,4", 0),
    ],
)
def test_products_between_transposes(equation: str, left: str, right: str, result: str, transposes: int) -> None:
    text = einsum(equation, left, right, result)
    graph = read(text, {})
    assert counts(graph) == {"MatMul": 1} | ({"Transpose": transposes} if transposes else {})
    assert graph_costs(graph).total.macs == graph_costs(read_plainly(text, {})).total.macs
    assert graph.tensors["y"].shape == read_plainly(text, {}).tensors["y"].shape


@pytest.mark.parametrize(
    ("equation", "left", "weight", "result", "expected"),
    [
        ("abc,cde->abde", "6,8", "float[8,2,3]", "6,2,3", ["Gemm", "Reshape"]),
        ("abcd,cde->abe", "6,2,4", "float[2,4,5]", "6,5", ["Reshape", "Gemm"]),
        ("abc,cd->abd", "6,8", "float[8,3]", "6,3", ["Gemm"]),
    ],
)
def test_linear_layers(equation: str, left: str, weight: str, result: str, expected: list[str]) -> None:
    text = f'(float[N,{left}] x) => (float[N,{result}] y) {{ y = Einsum<equation="{equation}">(x, w)\n }}'
    graph = read(text, {"w": weight})
    assert [n.op for n in graph.nodes] == expected
    assert graph_costs(graph).total.macs == graph_costs(read_plainly(text, {"w": weight})).total.macs


@pytest.mark.parametrize("equation", ["abc,abc->ab", "abc,adc->abcd", "abc,abd->acd"])
def test_other_einsums_stay(equation: str) -> None:
    result = {"abc,abc->ab": "6", "abc,adc->abcd": "6,5,6", "abc,abd->acd": "5,5"}[equation]
    text = einsum(equation, "6,5", "6,5", result)
    graph = read(text, {})
    assert graph_costs(graph).total.macs == graph_costs(read_plainly(text, {})).total.macs
    assert "Einsum" in counts(graph) or "MatMul" in counts(graph)
