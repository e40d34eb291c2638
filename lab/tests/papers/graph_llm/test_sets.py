import numpy as np
import pytest

from foretell.errors import InputError
from lab.papers.graph_llm import sets
from lab.tests.papers.graph_llm import tiny


def test_rows_come_back_as_they_were_written(tmp_path):
    rows = sets.Rows(tiny.rows(3), {task: tiny.rows(2, f"new {task}") for task in sets.TASKS})
    sets.write(rows, tmp_path / "rows.npz")
    found = sets.read(tmp_path / "rows.npz")
    for some, others in [(rows.known, found.known), *((rows.new[task], found.new[task]) for task in sets.TASKS)]:
        assert [(row.platform, row.group, row.ms) for row in some] == [(r.platform, r.group, r.ms) for r in others]
        for row, other in zip(some, others, strict=True):
            assert (row.graph.output_shapes == other.graph.output_shapes).all()
            assert (row.graph.edges == other.graph.edges).all()
            assert row.graph.whole == pytest.approx(other.graph.whole)


def test_rows_that_were_not_prepared_are_asked_for(tmp_path):
    with pytest.raises(InputError, match="prepare"):
        sets.read(tmp_path / "rows.npz")


def test_transformers_are_no_known_rows_and_no_rows_of_a_new_gpu():
    groups = ("resnet50", "vit_base_patch16", "deit3_small", "hf:vit?layers=2", "crossvit_9", "hf:bert?layers=2")
    assert [sets.is_transformer(group) for group in groups] == [False, True, True, True, False, False]
    assert sets._places(groups, "RTX 3090, inference").tolist() == [0, 4, 5]
    assert len(sets._places(groups, sets.NEW_ARCHITECTURE)) == len(groups)


def test_rows_follow_the_order_of_adaptation_which_may_have_left_some_out():
    rows = tiny.rows(6)
    kept = [0, 2, 3, 5]
    judged = sets.Judged(
        "x", tuple(rows[place].group for place in kept), (), np.zeros((4, 1)), np.zeros(4),
        np.array([rows[place].ms for place in kept]), 0.1,
    )  # fmt: skip
    assert [row.group for row in sets._aligned(rows, judged, "T4, operators")] == list(judged.groups)
