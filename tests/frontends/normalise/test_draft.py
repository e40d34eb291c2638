"""A graph that is being rewritten stays a graph."""

import pytest

from foretell.errors import GraphError
from foretell.frontends.normalise.draft import Draft
from foretell.testing import tiny_graph


def test_untouched_it_is_the_same_graph() -> None:
    graph = tiny_graph()
    assert Draft(graph).finish().hash == graph.hash


def test_producers_and_consumers_follow_every_change() -> None:
    draft = Draft(tiny_graph())
    conv = next(n for n in draft.current_nodes() if n.op == "Conv")
    reader = draft.only_reader(conv.outputs[0])
    assert reader is not None
    made = draft.tensor(conv.outputs[0], draft.shape(conv.outputs[0]))
    draft.redirect(conv.outputs[0], made)
    draft.put("Relu", (conv.outputs[0],), (made,), like=conv)
    assert draft.made_by(made, "Relu") is not None
    assert draft.made_by(made, "Conv") is None
    assert [n.op for n in draft.readers(conv.outputs[0])] == ["Relu"]
    graph = draft.finish()
    assert len(graph.nodes) == len(tiny_graph().nodes) + 1
    graph.validate()


def test_nodes_that_nobody_reads_are_gone_in_the_end() -> None:
    draft = Draft(tiny_graph())
    node = next(draft.current_nodes())
    draft.put("Relu", (node.outputs[0],), (draft.tensor(node.outputs[0], (1,)),), like=node)
    assert draft.finish().hash == tiny_graph().hash


def test_a_change_made_meanwhile_is_seen() -> None:
    draft = Draft(tiny_graph())
    seen = []
    for node in draft.current_nodes():
        seen.append(node)
        following = draft.only_reader(node.outputs[0])
        if following is not None:
            draft.change(following, attributes={"touched": 1})
    assert [n.attributes.get("touched") for n in seen[1:]] == [1] * (len(seen) - 1)


def test_a_broken_graph_does_not_leave() -> None:
    draft = Draft(tiny_graph())
    draft.remove([next(draft.current_nodes())])
    with pytest.raises(GraphError):
        draft.finish()


def test_weights_change_shape_but_never_size() -> None:
    draft = Draft(tiny_graph())
    assert draft.weight("conv.weight", draft.shape("conv.weight")) == "conv.weight"
    flat = draft.weight("conv.weight", (draft.tensors["conv.weight"].elements,), "buffer")
    assert draft.tensors[flat].kind == "buffer"
    assert draft.is_weight(flat)
    assert not draft.is_scalar(flat)
    with pytest.raises(AssertionError):
        draft.weight("conv.weight", (1,))
