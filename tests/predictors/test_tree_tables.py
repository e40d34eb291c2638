import numpy as np
import pytest

from foretell.errors import ModelError
from foretell.predictors import trees as trees_module
from foretell.predictors.tree_tables import TreeTables
from foretell.predictors.trees import TreeFit, Trees, to_onnx

pytest.importorskip("lightgbm")


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(600, 4)).astype(np.float32)
    rows[:, 0] = rng.integers(0, 40, 600)
    rows[rng.random(600) < 0.1, 2] = np.nan
    truth = np.where(rows[:, 0] % 3 == 0, 2.0, -1.0) + np.nan_to_num(rows[:, 2]) * rows[:, 1]
    booster = TreeFit(rounds=25, leaves=15, least_in_leaf=5).fit(rows, truth, categorical=[0])
    return booster, to_onnx(booster), rows


def test_walking_and_onnxruntime_and_lightgbm_agree(fitted, monkeypatch):
    booster, data, rows = fitted
    walked = TreeTables.read(data).predict(rows)
    assert walked == pytest.approx(booster.predict(rows), abs=1e-5)
    monkeypatch.setattr(trees_module, "_WALKED_ROWS", 0)
    assert walked == pytest.approx(Trees.load(data).predict(rows), abs=1e-5)


def test_codes_outside_every_set_and_absent_values_go_where_onnxruntime_sends_them(fitted, monkeypatch):
    _, data, rows = fitted
    odd = np.repeat(rows[:1], 4, axis=0)
    odd[:, 0] = [-1, 500, np.nan, np.inf]
    monkeypatch.setattr(trees_module, "_WALKED_ROWS", 0)
    assert TreeTables.read(data).predict(odd) == pytest.approx(Trees.load(data).predict(odd), abs=1e-5)


def test_the_first_rows_are_walked_and_many_are_not(fitted, monkeypatch):
    _, data, rows = fitted
    made = []
    session = trees_module._session
    monkeypatch.setattr(trees_module, "_session", lambda data: made.append(1) or session(data))
    trees = Trees.load(data)
    trees.predict(rows[:100])
    assert not made
    trees.predict(rows)
    trees.predict(rows[:1])
    assert made == [1]


def test_what_is_no_model_of_trees_is_refused(fitted):
    _, data, _ = fitted
    for other in (b"", b"nothing", data[: len(data) // 2]):
        with pytest.raises(ModelError):
            TreeTables.read(other)


def test_tables_that_point_outside_themselves_are_refused(fitted):
    onnx = pytest.importorskip("onnx")
    model = onnx.load_model_from_string(fitted[1])
    for name, value in (("nodes_truenodeids", 10**6), ("nodes_featureids", 99), ("tree_roots", -5)):
        broken = onnx.ModelProto()
        broken.CopyFrom(model)
        attribute = next(field for field in broken.graph.node[0].attribute if field.name == name)
        attribute.ints[0] = value
        with pytest.raises(ModelError, match="damaged"):
            TreeTables.read(broken.SerializeToString())


def test_without_onnxruntime_trees_are_walked_however_many_rows_there_are(fitted, monkeypatch):
    _, data, rows = fitted
    monkeypatch.setattr(trees_module, "_WALKED_ROWS", 0)
    monkeypatch.setattr(trees_module, "available", lambda name: name != "onnxruntime")
    monkeypatch.setattr(trees_module, "_session", lambda _: pytest.fail("a session was made"))
    assert Trees.load(data).predict(rows) == pytest.approx(TreeTables.read(data).predict(rows))
