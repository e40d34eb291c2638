import numpy as np
import pytest

from lab.papers.graph_llm import texts
from lab.tests.papers.graph_llm import tiny


def test_digits_hold_three_places_of_every_latency():
    for ms in 10.0 ** np.random.default_rng(0).uniform(-3, 6, 300):
        assert texts.parsed(texts.written(ms)) == pytest.approx(ms, rel=0.0051)


@pytest.mark.parametrize("text", ["", "412", "41234", "x123", "4 23", "4012", "²123", "-123"])
def test_what_is_no_latency_is_not_parsed(text):
    assert texts.parsed(text) is None


def test_what_cannot_be_written_is_refused():
    with pytest.raises(ValueError, match="cannot be written"):
        texts.written(1e-5)


def test_a_summary_counts_layers_and_sums_their_work():
    graph = tiny.graph()
    said = texts.summary(graph, layers=9)
    assert f" {len(graph)} nodes, {graph.edges.shape[1]} edges, batch 2," in said
    classes = texts.layer_classes(graph)
    assert said.count(":") == len(set(classes.tolist()))
    assert "conv2d: " in said
    assert texts.summary(graph, layers=1).count(":") == 1


def test_a_description_has_the_nodes_that_are_asked_for():
    graph = tiny.graph()
    assert texts.described(graph, "graph") == ""
    assert texts.described(graph, "text").endswith("</graph>")
    assert texts.described(graph, "json", 2).count('"op"') == 2
    assert '"from":[0]' in texts.described(graph, "json", 2)
