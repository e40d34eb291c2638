import io
from dataclasses import asdict, replace

import numpy as np
import pytest

from foretell.errors import InputError, ModelError
from foretell.predictors import trees as trees_module
from foretell.predictors.trees import Forest, Trees


@pytest.fixture
def trees() -> Trees:
    """Two trees over two columns: ``x0 <= 1`` and then ``x1 in {0, 3}``; a single leaf."""
    return Trees(
        2,
        np.array([0, 2], np.int32),
        np.array([0, 1, 0], np.int32),
        np.array([1.0, 0.0, 0.0], np.float32),
        np.array([True, False, False]),
        np.array([[-1, 1], [-2, -3], [-4, -4]], np.int32),
        np.array([-1, 0, -1], np.int32),
        np.array([[True, False, False, True]]),
        np.array([1.0, 2.0, 4.0, 0.5], np.float32),
    )


def value(trees: Trees, *row: float) -> float:
    return float(trees.predict(np.array([row], np.float32))[0])


def test_a_row_gets_the_sum_of_its_leaves(trees: Trees) -> None:
    assert value(trees, 2, 0) == 1.5
    assert value(trees, 1, 3) == value(trees, 1, 0) == 4.5
    assert value(trees, 1, 1) == 2.5


def test_missing_values_follow_the_node_and_odd_codes_are_in_no_set(trees: Trees) -> None:
    assert value(trees, np.nan, 3) == 4.5
    assert value(replace(trees, takes_nan=np.zeros(3, np.bool_)), np.nan, 3) == 1.5
    for code in (np.nan, np.inf, -1, 2.5, 4, 500):
        assert value(trees, 0, code) == 2.5, code


def test_blocks_of_rows_give_the_same_as_all_at_once(trees: Trees, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(0).integers(-1, 5, (50, 2)).astype(np.float32)
    rows[::7, 0] = np.nan
    expected = trees.predict(rows)
    assert set(expected) == {1.5, 2.5, 4.5}
    monkeypatch.setattr(trees_module, "_BLOCK", 7)
    assert trees.predict(rows).tolist() == expected.tolist()


def test_what_is_written_is_read(trees: Trees) -> None:
    again = Trees.load(trees.to_bytes())
    for name in set(asdict(trees)) - {"children", "leaves"}:
        np.testing.assert_array_equal(getattr(again, name), getattr(trees, name))
        assert np.asarray(getattr(again, name)).dtype == np.asarray(getattr(trees, name)).dtype
    assert again.children.tolist() == [[-1, 1], [-2, -3], [-4, -5]]  # the last leaf was named twice
    assert again.leaves.tolist() == [1.0, 2.0, 4.0, 0.5, 0.5]
    assert again.to_bytes() == trees.to_bytes()


def test_leaves_in_any_order_are_written_in_that_of_their_nodes(trees: Trees) -> None:
    mixed = replace(
        trees,
        children=np.array([[-3, 1], [-1, -4], [-2, -2]], np.int32),
        leaves=np.array([2.0, 0.5, 1.0, 4.0], np.float32),
    )
    rows = np.random.default_rng(0).integers(-1, 5, (50, 2)).astype(np.float32)
    assert mixed.predict(rows).tolist() == trees.predict(rows).tolist()
    assert mixed.to_bytes() == trees.to_bytes()


def written(arrays: dict) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("steps", [[0, 3], [0, 0], [0, 0]]),
        ("steps", [[0, 1], [0, 0]]),
        ("steps", [0, 1, 0]),
        ("leaves", [1.0, 2.0, 4.0, 0.5]),
    ],
)
def test_steps_that_lead_outside_are_refused(trees: Trees, name: str, array: list) -> None:
    with np.load(io.BytesIO(trees.to_bytes())) as file:
        arrays = dict(file)
    assert Trees.load(written(arrays)).leaves.tolist() == [1.0, 2.0, 4.0, 0.5, 0.5]
    with pytest.raises(ModelError):
        Trees.load(written(arrays | {name: np.array(array, arrays[name].dtype)}))


def test_a_file_that_names_children_is_still_read(trees: Trees) -> None:
    again = Trees.load(written(asdict(trees)))
    for name, array in asdict(trees).items():
        np.testing.assert_array_equal(getattr(again, name), array)


def test_no_rows_and_the_wrong_number_of_columns(trees: Trees) -> None:
    assert trees.predict(np.zeros((0, 2), np.float32)).shape == (0,)
    with pytest.raises(InputError, match=r"\(5, 4\).*\(rows, 2\)"):
        trees.predict(np.zeros((5, 4), np.float32))


def test_bytes_that_are_not_trees_are_refused(trees: Trees) -> None:
    data, other = trees.to_bytes(), io.BytesIO()
    np.savez(other, columns=np.array(2), roots=np.zeros(1))
    for wrong in (b"", b"trees", data[: len(data) // 2], other.getvalue()):
        with pytest.raises(ModelError, match=f"These {len(wrong)} bytes are not trees"):
            Trees.load(wrong)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("children", [[-1, 3], [-2, -3], [-4, -4]]),
        ("children", [[-1, 0], [-2, -3], [-4, -4]]),
        ("children", [[-1, 1], [-2, -5], [-4, -4]]),
        ("children", [[-1, 1], [-2, -3]]),
        ("feature", [0, 2, 0]),
        ("feature", [0, -1, 0]),
        ("roots", [0, 3]),
        ("roots", [-1, 2]),
        ("code_set", [-1, 1, -1]),
        ("code_set", [-1, 0]),
        ("sets", [True, False]),
    ],
)
def test_arrays_that_point_outside_themselves_are_refused(trees: Trees, name: str, array: list) -> None:
    broken = replace(trees, **{name: np.array(array, getattr(trees, name).dtype)})
    with pytest.raises(ModelError, match="damaged"):
        Trees.load(written(asdict(broken)))


def test_a_forest_gives_what_each_ensemble_gives_by_itself(trees: Trees) -> None:
    without_sets = replace(trees, code_set=np.full(3, -1, np.int32), sets=np.zeros((0, 0), np.bool_))
    more_codes = replace(trees, leaves=-trees.leaves, sets=np.eye(1, 7, 5, dtype=np.bool_))
    ensembles = {"first": trees, "second": without_sets, "third": more_codes}
    rows = np.random.default_rng(0).integers(-1, 8, (300, 2)).astype(np.float32)
    rows[7, 0] = np.nan
    found = Forest(ensembles).predict(rows)
    assert list(found) == list(ensembles)
    for name, one in ensembles.items():
        np.testing.assert_array_equal(found[name], one.predict(rows))
    assert len({tuple(values) for values in found.values()}) == 3
