"""Names as templates and numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.datasets.graphs.name_templates import TemplateReader, TemplateWriter


def again(names: list[tuple[str, str]]) -> list[str]:
    writer = TemplateWriter()
    places, numbers = writer.write(names)
    reader = TemplateReader(list(writer.templates))
    return reader.read(np.array(places, np.int32), np.array(numbers, np.int32), [known for _, known in names])


def test_only_numbers_that_stand_alone_are_taken_out() -> None:
    writer = TemplateWriter()
    writer.write([(name, "") for name in ("conv2d_7", "h.10.ln_1", "a_007", "a_1234567890", "0", "x1")])
    assert list(writer.templates) == ["conv2d_#", "h.#.ln_#", "a_007", "a_1234567890", "#", "x1"]


def test_parts_of_a_known_name_become_placeholders() -> None:
    writer = TemplateWriter()
    known = "blocks.3.Norm"
    names = ["blocks.3.Norm.weight", "p_blocks_3_Norm_bias", "p_blocks_3_norm_bias", "other_3"]
    places, numbers = writer.write([(name, known) for name in names])
    assert list(writer.templates) == ["{is}.weight", "p_{is_}_bias", "p_{is_low}_bias", "other_#"]
    assert (places, numbers) == ([0, 1, 2, 3], [3])
    assert again([(name, known) for name in names]) == names


def test_numbers_that_grow_by_one_are_ones() -> None:
    names = [(f"layers.{layer}.{what}", "") for layer in range(5) for what in ("fc", "norm")]
    assert TemplateWriter().write(names)[1] == [0, 0, 1, 1, 1, 1, 1, 1, 1, 1]
    assert again(names) == [name for name, _ in names]


@given(st.lists(st.tuples(st.text("ab_.019%s", max_size=9), st.text("a_.1B", max_size=3)), max_size=12))
def test_names_come_back(names: list[tuple[str, str]]) -> None:
    assert again(names) == [name for name, _ in names]


def test_a_name_with_a_mark_of_templates_is_refused() -> None:
    with pytest.raises(ValueError, match="mark templates"):
        TemplateWriter().write([("a#b", "")])


@pytest.mark.parametrize(("places", "numbers"), [([2], []), ([-1], []), ([0], []), ([0], [1, 2])])
def test_damage_is_refused(places: list[int], numbers: list[int]) -> None:
    with pytest.raises(ValueError, match="template"):
        TemplateReader(["a_#"]).read(np.array(places, np.int32), np.array(numbers, np.int32), [""])
