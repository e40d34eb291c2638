import numpy as np

from foretell.predictors.fusion.baselines import PairFrequency, always, by_rules, never
from foretell.predictors.fusion.edges import extract_edges
from foretell.testing import tiny_graph
from small.tiny_workloads import forked

EDGES = extract_edges(tiny_graph(), "onnxruntime").features


def test_nothing_and_everything():
    assert not never(EDGES).any()
    assert always(EDGES).all()


def test_rules_join_a_product_with_what_follows_it_and_nobody_else_reads():
    assert by_rules(EDGES).tolist() == [True, False, False, False]  # a convolution and its activation
    assert not by_rules(extract_edges(forked().graph, "onnxruntime").features)[:2].any()


def test_pairs_do_what_most_of_them_did_and_unseen_ones_are_not_fused():
    pairs = PairFrequency(np.concatenate([EDGES] * 3), np.array([True, False] * len(EDGES) + [True] * len(EDGES)))
    assert pairs(EDGES).tolist() == [True, False, True, False]
    assert not PairFrequency(EDGES[:1], np.array([True]))(EDGES[1:]).any()
    other = EDGES.copy()
    other[:, 0] = 1
    assert not pairs(other).any(), "another runtime is another matter"
