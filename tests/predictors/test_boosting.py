import subprocess
import sys
import zlib

import numpy as np
import pytest

from foretell.errors import InputError, MissingExtraError, ModelError
from foretell.predictors.boosting import TreeFit, trees_of
from foretell.predictors.trees import Trees

pytest.importorskip("lightgbm")

CATEGORIES = 90
CATEGORICAL = (4, 5)
COLUMNS = 6


def rows(count: int, seed: int = 0) -> np.ndarray:
    """Numbers of many sizes, halves, NaN, and two columns of codes, some of them missing."""
    draw = np.random.default_rng(seed)
    table = draw.normal(size=(count, COLUMNS)).astype(np.float32)
    table[:, 1] = np.exp(4 * table[:, 1])
    table[:, 2] = np.round(2 * table[:, 2]) / 2
    table[draw.random(count) < 0.2, 3] = np.nan
    table[:, 4] = draw.integers(0, CATEGORIES, count)
    table[:, 5] = draw.integers(0, 3, count)
    table[draw.random(count) < 0.1, 4] = np.nan
    return table


def truth_of(table: np.ndarray) -> np.ndarray:
    known = np.nan_to_num(table.astype(np.float64), nan=2.0)
    categories = np.sin(known[:, 4] * 7) * 2 + (known[:, 4] % 5 == 0)
    return known[:, 0] + np.log1p(known[:, 1]) + np.abs(known[:, 3]) * known[:, 5] + categories + 5


def assert_equal_predictions(booster, table: np.ndarray, served: Trees | None = None) -> None:
    expected = booster.predict(table)
    predicted = (served or Trees.load(trees_of(booster).to_bytes())).predict(table)
    assert predicted.dtype == np.float64
    assert predicted.shape == expected.shape
    np.testing.assert_allclose(predicted, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).mean())


@pytest.fixture(scope="module")
def booster():
    table = rows(3_000)
    others = {"min_data_per_group": 5, "cat_smooth": 1.0}
    return TreeFit(rounds=60, leaves=31, least_in_leaf=5, others=others).fit(
        table, truth_of(table), categorical=CATEGORICAL
    )


@pytest.fixture(scope="module")
def served(booster):
    return Trees.load(trees_of(booster).to_bytes())


def test_served_trees_predict_what_lightgbm_predicts(booster, served):
    splits = booster.model_to_string()
    assert "num_cat=0" not in splits.split("Tree=1")[0], "categories must be split, or this shows nothing"
    assert_equal_predictions(booster, rows(10_000, seed=1), served)


def test_values_on_every_threshold_fall_on_the_same_side():
    table = rows(2_000)[:, :3]
    halves = np.round(table * 4) / 4
    fitted = TreeFit(rounds=20, least_in_leaf=1).fit(halves, halves.sum(axis=1))
    thresholds = np.unique(
        [n["threshold"] for t in fitted.dump_model()["tree_info"] for n in splits_of(t["tree_structure"])]
    )
    near = thresholds.astype(np.float32)
    steps = np.concatenate([near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))])
    assert_equal_predictions(fitted, np.repeat(steps[:, None], 3, axis=1))


def test_one_category_against_the_rest_and_codes_on_both_sides_of_a_word_of_bits():
    codes = np.repeat(np.arange(70, dtype=np.float32), 10)[:, None]
    truth = np.random.default_rng(5).normal(size=70)[codes[:, 0].astype(int)]
    others = {"min_data_per_group": 1, "cat_smooth": 0.0, "cat_l2": 0.0, "max_bin": 255}
    for most in (1, 4, 32, 64):
        more = others | {"max_cat_threshold": most}
        fitted = TreeFit(rounds=20, least_in_leaf=1, others=more).fit(codes, truth, categorical=(0,))
        assert_equal_predictions(fitted, np.array([[np.nan], *([code] for code in range(-2, 100))], np.float32))


def splits_of(node):
    if "split_index" in node:
        yield node
        yield from splits_of(node["left_child"])
        yield from splits_of(node["right_child"])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.0, -0.5, -1.0, -3.0, 2.5, 89.0, 90.0, 500.0])
def test_strange_values_go_where_lightgbm_sends_them(booster, served, value):
    table = rows(100, seed=2)
    for column in range(COLUMNS):
        if column in CATEGORICAL and not (np.isnan(value) or (value == np.round(value) and np.isfinite(value))):
            continue  # a category is a whole number
        strange = table.copy()
        strange[:, column] = value
        assert_equal_predictions(booster, strange, served)


@pytest.mark.parametrize("others", [{}, {"use_missing": False}])
def test_missing_values_where_fitting_saw_none(others):
    table = np.nan_to_num(rows(1_000), nan=1.0)
    table[::3, :4] = 0.0
    fitted = TreeFit(rounds=20, least_in_leaf=5, others=others).fit(table, truth_of(table), categorical=CATEGORICAL)
    fresh = rows(2_000, seed=3)
    fresh[::4, :4] = 0.0
    fresh[1::4, :] = np.nan
    assert_equal_predictions(fitted, fresh)


def test_a_tree_without_splits_is_a_constant():
    table = np.zeros((50, 2), np.float32)
    fitted = TreeFit(rounds=2).fit(table, np.full(50, 3.5))
    assert trees_of(fitted).predict(table[:2]).tolist() == [3.5, 3.5]


def test_a_large_model_stays_small():
    table = rows(4_000)
    fitted = TreeFit(rounds=200, leaves=63, least_in_leaf=10).fit(table, truth_of(table), categorical=CATEGORICAL)
    assert sum(t["num_leaves"] for t in fitted.dump_model()["tree_info"]) > 200 * 60
    assert len(zlib.compress(trees_of(fitted).to_bytes())) < 600_000


def test_fitting_again_gives_the_same_bytes_and_weights_count():
    table = rows(300)
    truth = truth_of(table)
    fit = TreeFit(rounds=5, least_in_leaf=5, seed=3)
    assert trees_of(fit.fit(table, truth)).to_bytes() == trees_of(fit.fit(table, truth)).to_bytes()
    heavy = fit.fit(table, truth, weight=np.where(truth > np.median(truth), 50.0, 1.0))
    assert heavy.predict(table).mean() > fit.fit(table, truth).predict(table).mean()


@pytest.mark.parametrize(
    ("fit", "message"),
    [
        (TreeFit(rounds=2, objective="poisson"), "poisson"),
        (TreeFit(rounds=2, others={"reg_sqrt": True}), "sqrt"),
        (TreeFit(rounds=2, others={"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.5}), "averaged"),
        (TreeFit(rounds=2, others={"linear_tree": True}), "linear"),
        (TreeFit(rounds=2, others={"zero_as_missing": True}), "zero_as_missing"),
    ],
)
def test_boosters_whose_predictions_are_not_sums_of_leaves_are_refused(fit, message):
    table = np.abs(rows(200)[:, :2])
    with pytest.raises(ModelError, match=message):
        trees_of(fit.fit(table, table.sum(axis=1)))


def test_rows_without_truth_are_refused():
    with pytest.raises(InputError, match=r"\(4, 6\)"):
        TreeFit().fit(rows(4), np.zeros(3))


def test_serving_needs_no_lightgbm_and_fitting_names_its_extra(booster, tmp_path, monkeypatch):
    model = tmp_path / "trees.npz"
    model.write_bytes(trees_of(booster).to_bytes())
    code = (
        "import sys, pathlib, numpy; sys.modules['lightgbm'] = None; from foretell.predictors.trees import Trees; "
        "trees = Trees.load(pathlib.Path(sys.argv[1]).read_bytes()); "
        "sys.stdout.write(repr(float(trees.predict(numpy.ones((1, 6), numpy.float32))[0])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(model)], capture_output=True, text=True, timeout=60, check=True
    )
    assert float(done.stdout) == pytest.approx(booster.predict(np.ones((1, COLUMNS), np.float32))[0], rel=1e-5)
    monkeypatch.setattr("foretell.optional.available", lambda module: False)
    with pytest.raises(MissingExtraError, match=r"Fitting trees needs lightgbm: pip install 'foretell\[train\]'"):
        TreeFit().fit(rows(4), np.zeros(4))
