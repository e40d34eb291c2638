"""Serving: a file is what was fitted or is refused, and a prediction is whole: intervals, shares, doubts."""

import io
import json
import zipfile

import numpy as np
import pytest

from foretell.errors import ModelError
from foretell.features import COLUMNS
from foretell.features.pooled import DistinctUnits, Stacked, pool
from foretell.predictors.trees import Forest
from foretell.predictors.unit.fit_model import predict_samples
from foretell.predictors.unit.model import METRICS, NEIGHBOURS, UnitModel, nearest, tree_rows, write
from foretell.predictors.unit.network import UnitPredictions
from small.fixed_trees import fixed_model
from small.small_samples import small_samples

pytest.importorskip("lightgbm")


def parts_of(file: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(file)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zipped(parts: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return file.getvalue()


def test_what_is_written_is_read(file: bytes, trees: UnitModel) -> None:
    parts = parts_of(file)
    models = {name.removesuffix(".npz"): data for name, data in parts.items() if name.endswith(".npz")}
    again = write(dict(reversed(models.items())), dict(reversed(trees.card.items())), trees.known)
    assert again == file, "the same trees are the same bytes, in whatever order they come"
    predicted = predict_samples(UnitModel.load(again), small_samples()[:6])
    for name, values in predict_samples(trees, small_samples()[:6]).items():
        np.testing.assert_array_equal(predicted[name], values)


@pytest.mark.parametrize("part", ["card.json", "known.npy"])
def test_a_file_without_a_part_is_refused(file: bytes, part: str) -> None:
    parts = parts_of(file)
    del parts[part]
    with pytest.raises(ModelError, match="not a fitted predictor"):
        UnitModel.load(zipped(parts))


@pytest.mark.parametrize("part", ["card.json", "known.npy", "unit.npz"])
@pytest.mark.parametrize("content", [b"", b"\x00nonsense"])
def test_a_file_with_a_spoilt_part_is_refused(file: bytes, part: str, content: bytes) -> None:
    with pytest.raises(ModelError):
        UnitModel.load(zipped(parts_of(file) | {part: content}))


@pytest.mark.parametrize("data", [b"", b"PK", b"not a zip at all"])
def test_what_is_no_archive_is_refused(data: bytes) -> None:
    with pytest.raises(ModelError, match=f"These {len(data)} bytes are not a fitted predictor"):
        UnitModel.load(data)


def test_a_file_that_is_cut_or_changed_anywhere_is_refused(file: bytes) -> None:
    for length in range(0, len(file), len(file) // 20):
        with pytest.raises(ModelError):
            UnitModel.load(file[:length])
    with zipfile.ZipFile(io.BytesIO(file)) as archive:
        starts = [entry.header_offset + 60 for entry in archive.infolist() if entry.compress_size > 200]
    for start in starts:
        for value in (0x00, 0xFF):
            spoilt = bytearray(file)
            spoilt[start : start + 40] = bytes([value]) * 40
            with pytest.raises(ModelError):
                UnitModel.load(bytes(spoilt))


@pytest.mark.parametrize("schema", ["schema", "pooled_schema"])
def test_trees_of_other_features_are_refused(file: bytes, trees: UnitModel, schema: str) -> None:
    card = json.dumps({**trees.card, schema: "0123456789abcdef"}).encode()
    with pytest.raises(ModelError, match=r"other features.*; fit it again: foretell train"):
        UnitModel.load(zipped(parts_of(file) | {"card.json": card}))


@pytest.mark.parametrize("card", [b"{}", b"[]", b"7"])
def test_a_card_of_something_else_is_refused(file: bytes, card: bytes) -> None:
    with pytest.raises(ModelError):
        UnitModel.load(zipped(parts_of(file) | {"card.json": card}))


def test_a_row_like_no_other_is_far(trees: UnitModel) -> None:
    sample = small_samples()[7]
    row = pool(sample.units, trees.times_us(sample.units), sample.setting)
    near, far = trees.distances(np.stack([row, row * 3 + 10]))
    assert near < 1 < far


def test_distances_hold_in_full_precision(trees: UnitModel) -> None:
    """Trees learn from distances of full precision, and must be served the same."""
    middle, spread = np.array(trees.card["distance"]["middle"]), np.array(trees.card["distance"]["spread"])
    known = trees.known.astype(np.float64)
    expected = np.linalg.norm(known[:, None] - known[None], axis=2)
    expected.sort(axis=1)
    result = trees.distances((known * spread + middle).astype(np.float32)) * trees.card["distance"]["far"]
    np.testing.assert_allclose(result, expected[:, :NEIGHBOURS].mean(axis=1), atol=0.01)


def test_nearest_is_the_mean_over_a_few() -> None:
    known = np.array([[0.0], [1.0], [2.0], [3.0], [4.0], [100.0]], dtype=np.float32)
    assert nearest(np.array([[0.0]], dtype=np.float32), known)[0] == pytest.approx(2.0)
    assert nearest(np.array([[0.0]], dtype=np.float32), known[1:2])[0] == pytest.approx(1.0)


def test_an_operator_nobody_knows_is_a_category_of_its_own() -> None:
    features = np.array([[-1.0, -1.0], [3.0, 2.0], [0.0, 1.0]], dtype=np.float32)
    rows = tree_rows(features)
    np.testing.assert_array_equal(rows[2], features[2])
    assert rows[0, 0] > 400
    assert rows[0, 1] == -1
    np.testing.assert_array_equal(rows[1], features[1])
    assert features[0, 0] == -1, "the argument stays as it was"


def test_totals_are_predicted_from_pooled_units_and_their_distance(
    trees: UnitModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[np.ndarray] = []
    predict = Forest.predict

    def recording(forest: Forest, features: np.ndarray) -> dict[str, np.ndarray]:
        rows.append(features)
        return predict(forest, features)

    monkeypatch.setattr(Forest, "predict", recording)
    deaf = fixed_model(trees)  # its trees say nothing new
    sample = next(sample for sample in small_samples() if sample.units.counts.max() > 1)
    prediction = deaf.predict(sample.units, sample.setting, sample.roofline_w)
    pooled = pool(sample.units, sample.units.bound_us, sample.setting)
    assert len(rows) == 1
    # trees have no members that could differ, and the sample is one of those that were learned from
    np.testing.assert_array_equal(rows[0], [[*pooled, np.float32(prediction.distance), 0.0, 0.0, 0.0]])
    assert prediction.distance == trees.distances(pooled[None])[0] > 0
    bound_ms = float((sample.units.bound_us * sample.units.counts).sum()) / 1000
    assert prediction.estimates["latency_ms"].value == pytest.approx(bound_ms)
    assert prediction.estimates["memory_mib"].value == sample.setting.memory_mib
    assert prediction.estimates["power_w"].value == sample.roofline_w
    assert prediction.estimates["energy_j"].value == pytest.approx(sample.roofline_w * bound_ms / 1000)


def some_units(counts: list[float], columns: dict[str, list[float]] | None = None) -> DistinctUnits:
    """Units of which only what is named is known."""
    features = np.zeros((len(counts), len(COLUMNS)), dtype=np.float32)
    for name, values in (columns or {}).items():
        features[:, COLUMNS.index(name)] = values
    return DistinctUnits(features, np.array(counts), np.ones(len(counts)), np.arange(len(counts)))


def test_mean_power_goes_by_the_time_of_every_repeat() -> None:
    units = some_units([1.0, 3.0])
    several = Stacked.of([units, some_units([1.0, 1.0])])
    times_us, power_w = np.array([2.0, 2.0, 6.0, 2.0]), np.array([100.0, 500.0, 100.0, 500.0])
    assert several.means(times_us, power_w).tolist() == pytest.approx([400.0, 200.0])


def test_corrections_are_logarithms_of_ratios(trees: UnitModel) -> None:
    sample = small_samples()[3]

    def answer(**answers: float) -> dict[str, float]:
        predictions = fixed_model(trees, **answers).predict(sample.units, sample.setting, 200.0)
        return {name: estimate.value for name, estimate in predictions.estimates.items()}

    plain = answer()
    twice = answer(latency_ms=np.log(2), power_w=np.log(0.5))
    ratios = {name: twice[name] / plain[name] for name in METRICS}
    # memory is counted, and nothing corrects it
    assert ratios == pytest.approx({"latency_ms": 2, "memory_mib": 1, "power_w": 0.5, "energy_j": 1.0})
    slower = answer(unit=np.log(4))
    assert slower["latency_ms"] == pytest.approx(4 * plain["latency_ms"])
    assert slower["energy_j"] == pytest.approx(4 * plain["energy_j"])


def test_an_interval_is_as_wide_as_the_expected_error_times_its_quantile(trees: UnitModel) -> None:
    sample = small_samples()[3]

    def width(expected: float) -> tuple[float, float]:
        answers = {f"{name}_error": float(np.log(expected)) for name in METRICS}
        estimate = fixed_model(trees, **answers).predict(sample.units, sample.setting, 200.0).estimates["latency_ms"]
        return estimate.low / estimate.value, estimate.high / estimate.value

    assert width(0.1) == pytest.approx((np.exp(-0.2), np.exp(0.2)))
    assert width(0.5) == pytest.approx((np.exp(-1.0), np.exp(1.0)))
    assert width(50.0) == pytest.approx((1 / 20, 20)), "no wider than a factor of twenty"


class FixedNetwork:
    """A network that tells one ratio and one power for every unit."""

    def predict(self, encoded: object, bound_us: np.ndarray) -> UnitPredictions:
        units = len(bound_us)
        return UnitPredictions(np.full(units, np.log(3.0)), np.linspace(100.0, 300.0, units), np.zeros(units))


def test_a_network_predicts_time_and_power(trees: UnitModel) -> None:
    models = {name: tree for name, tree in fixed_model(trees).models.items() if name not in ("unit", "power_w")}
    card = {**trees.card, "quantiles": dict.fromkeys(METRICS, 1.0)}
    model = UnitModel(models, card, trees.known, trees.reach, FixedNetwork())  # type: ignore[arg-type]
    sample = next(sample for sample in small_samples() if sample.units.counts.max() > 1 and len(sample.units) > 1)
    np.testing.assert_allclose(model.times_us(sample.units), 3 * sample.units.bound_us)
    answer = model.predict(sample.units, sample.setting, 1e9)
    predicted_w = np.linspace(100.0, 300.0, len(sample.units))
    spent_us = sample.units.bound_us * sample.units.counts
    assert answer.estimates["power_w"].value == pytest.approx((spent_us * predicted_w).sum() / spent_us.sum())
    assert answer.estimates["latency_ms"].value == pytest.approx(3 * spent_us.sum() / 1000)


def test_distances_are_in_units_of_what_is_usual(trees: UnitModel) -> None:
    scale = {"middle": [1.0, 2.0], "spread": [2.0, 4.0], "far": 5.0}
    known = np.array([[0.0, 0.0]], dtype=np.float32)
    model = UnitModel(trees.models, {**trees.card, "distance": scale}, known, trees.reach)
    distances = model.distances(np.array([[1.0, 2.0], [1.0 + 2 * 3, 2.0 + 4 * 4]], dtype=np.float32))
    assert distances == pytest.approx([0.0, 1.0])  # the second is 3 and 4 spreads away: 5 in all


def test_nearest_counts_no_more_than_there_are_and_never_below_zero() -> None:
    known = np.array([[3.0, 4.0]] * 2, dtype=np.float32)
    assert nearest(np.array([[0.0, 0.0], [3.0, 4.0]], dtype=np.float32), known) == pytest.approx([5.0, 0.0])
    large = np.full((6, 3), 1e4, dtype=np.float32) + np.arange(6, dtype=np.float32)[:, None] * 1e-3
    assert np.isfinite(nearest(large, large)).all()
    assert NEIGHBOURS == 5
