"""All measured workloads as arrays: extracted once, the same from the cache, and again when a record is added."""

import math
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from foretell.devices import find_device
from foretell.errors import DataError
from foretell.features import Units
from foretell.features.pooled import DistinctUnits
from foretell.graph import Node
from foretell.graph.ir.serde import to_document
from foretell.predictors.roofline import RooflinePredictor
from foretell.predictors.sample import TRUTHS, Sample
from foretell.records import Target
from foretell.testing import chain
from foretell.training.examples import samples as training_set
from foretell.training.examples.samples import BENCH, UNIT_TIMES_VERSION, fingerprint, read_samples, sample_of
from foretell.training.examples.workloads import Example, read_examples
from small.small_samples import H200
from small.small_store import SETTINGS, write_store, write_table

pytest.importorskip("pyarrow")

WIDTHS = (8, 32)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return write_store(tmp_path / "store", WIDTHS)


def examples(store: Path) -> dict[str, Example]:
    return {str(example.row["workload_id"]): example for example in read_examples(store, H200)}


def assert_same(actual: Sample, expected: Sample) -> None:
    for name in ("workload_id", "spec", "family", "setting", "roofline_ms", "roofline_w", "captured"):
        assert getattr(actual, name) == getattr(expected, name), name
    np.testing.assert_equal(actual.truth, expected.truth)
    for name in ("features", "counts", "bound_us"):
        one, other = getattr(actual.units, name), getattr(expected.units, name)
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    assert (actual.unit_us is None) == (expected.unit_us is None)
    if expected.unit_us is not None:
        np.testing.assert_array_equal(actual.unit_us, expected.unit_us)


def test_the_cache_gives_back_what_was_read(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "deep" / "cache"
    messages: list[str] = []
    first = read_samples(store, "h200", cache, messages.append)
    assert len(first) == len(WIDTHS) * len(SETTINGS)
    assert sum(sample.unit_us is not None for sample in first) == len(WIDTHS)
    assert [path.name for path in cache.iterdir()] == [
        f"samples-h200-{fingerprint(store, 'h200', unit_times=UNIT_TIMES_VERSION)}.npz"
    ]
    assert not messages

    def refuse(*_: object) -> None:
        raise AssertionError("the cache must be used")

    monkeypatch.setattr(training_set, "read_examples", refuse)
    for actual, expected in zip(read_samples(store, "h200", cache), first, strict=True):
        assert_same(actual, expected)


def test_a_sample_says_what_was_measured_and_what_is_known_without(store: Path) -> None:
    example = examples(store)["32-16-fp32-training"]
    sample = sample_of(example)
    base = RooflinePredictor().predict(example.workload)
    assert base.latency_ms
    assert base.memory_mib
    assert base.power_w
    assert sample.setting.memory_mib == base.memory_mib.value
    assert (sample.roofline_ms, sample.roofline_w) == (base.latency_ms.value, base.power_w.value)
    assert (sample.setting.mode, sample.setting.optimizer, sample.setting.batch_size) == ("training", "sgd", 16)
    assert set(sample.truth) == set(TRUTHS)
    assert sample.truth["latency_ms"] == example.row["latency_ms"]
    assert math.isnan(sample.truth["device_memory_mib"]), "what was not measured is no number"
    assert sample.unit_us is None


def test_equal_units_share_their_time(store: Path) -> None:
    example = examples(store)["8-1-fp32-inference"]
    traced = example.unit_us
    assert traced is not None
    np.testing.assert_allclose(traced, 2 * example.units.bound_us)
    sample = sample_of(example)
    assert sample.unit_us is not None
    assert (sample.unit_us * sample.units.counts).sum() == pytest.approx(traced.sum())
    features = example.units.features.copy()
    features[1] = features[0]
    equal = replace(example.units, rows=features, row_bound_us=example.units.bound_us, member=np.arange(len(features)))
    merged = sample_of(Example(example.row, example.workload, equal, traced))
    assert merged.unit_us is not None
    assert len(merged.units) == len(example.units) - 1
    assert merged.unit_us[DistinctUnits.of(equal).member[0]] == pytest.approx((traced[0] + traced[1]) / 2)
    assert (merged.unit_us * merged.units.counts).sum() == pytest.approx(traced.sum())


@pytest.mark.parametrize(
    ("family", "source", "captured"),
    [
        ("tiny", "cuda-graph", True), ("tiny", "cpu-timer", True), ("tiny", "kernel-sum", False),
        (BENCH, "cuda-graph", False),
    ],
)  # fmt: skip
def test_only_replays_of_networks_judge(store: Path, family: str, source: str, captured: bool) -> None:
    example = examples(store)["8-1-fp32-inference"]
    row = {**example.row, "family": family, "latency_source": source}
    assert sample_of(Example(row, example.workload, example.units, None)).captured is captured


def test_times_on_a_cpu_are_brought_to_the_pace_of_the_reference(store: Path) -> None:
    example = examples(store)["8-1-fp32-inference"]
    traced = np.arange(1.0, len(example.units) + 1)
    usual = sample_of(Example({**example.row, "reference_ms": None}, example.workload, example.units, traced))
    # a core that takes twice as long for the reference takes twice as long for everything
    slow = sample_of(Example({**example.row, "reference_ms": 0.28}, example.workload, example.units, traced))
    assert slow.truth["latency_ms"] == pytest.approx(usual.truth["latency_ms"] / 2)
    assert slow.truth["memory_mib"] == pytest.approx(usual.truth["memory_mib"], nan_ok=True)
    assert slow.unit_us == pytest.approx(usual.unit_us / 2)


def test_another_file_is_another_fingerprint(store: Path, tmp_path: Path) -> None:
    before = fingerprint(store, "h200")
    assert fingerprint(store, "h200") == before
    (store / "notes.txt").write_text("not a record", encoding="utf-8")
    write_table(store / "two", "occupancy", [])
    assert fingerprint(store, "h200") == before, "tables that samples do not come from change nothing"
    write_table(store / "two", "measurements", [])
    assert fingerprint(store, "h200") != before
    assert fingerprint(write_store(tmp_path / "elsewhere", WIDTHS), "h200") == before, (
        "the place of a store is no part of it"
    )


def test_a_cache_of_another_store_is_not_used(store: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    read_samples(store, "h200", cache)
    write_store(store / "more", (16,))
    assert {sample.spec for sample in read_samples(store, "h200", cache)} == {
        f"synthetic:tiny?width={width}" for width in (*WIDTHS, 16)
    }
    assert len(list(cache.iterdir())) == 2


def test_other_devices_have_other_samples(store: Path, tmp_path: Path) -> None:
    """The facts of the device are features: a device that computes less has longer bounds."""
    slow = next(iter(read_examples(store, Target(find_device("t4")))))
    fast = next(iter(read_examples(store, H200)))
    assert sample_of(slow).units.bound_us.sum() > sample_of(fast).units.bound_us.sum()


def test_the_cache_is_written_completely_or_not_at_all(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"

    def full(source: str, target: Path) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("foretell.files.os.replace", full)
        with pytest.raises(OSError, match="No space left"):
            read_samples(store, "h200", cache)
    assert not list(cache.iterdir())
    assert len(read_samples(store, "h200", cache)) == len(WIDTHS) * len(SETTINGS)


def test_workloads_without_a_readable_graph_are_reported(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def partly(store: Path, target: Target, failures: dict[str, int], *_: object) -> object:
        failures["the batch does not fit"] += 3
        yield next(iter(read_examples(store, target)))

    monkeypatch.setattr(training_set, "read_examples", partly)
    messages: list[str] = []
    assert len(read_samples(store, "h200", tmp_path / "cache", messages.append)) == 1
    assert messages == ["3 workloads have no features: the batch does not fit"]


def test_a_store_without_measurements_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no measured workload of h200"):
        read_samples(tmp_path / "absent", "h200", tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_what_was_measured_on_another_device_is_no_sample(store: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no measured workload of a100"):
        read_samples(store, "a100-sxm-40gb", tmp_path / "cache")


def test_a_graph_without_work_is_no_sample(store: Path, tmp_path: Path) -> None:
    """A sum over no units has no logarithm."""
    spec = {"spec": "synthetic:idle", "input_shape": "4", "mode": "inference", "campaign_id": ""}
    idle = chain([Node("r", "Reshape", ("x",), ("y",))], {"x": (1, 4), "y": (1, 2, 2)}, ["x"], ["y"])
    facts = {"status": "ok", "workload_id": "idle", "dtype": "fp32", "batch_size": 1, "family": "idle"}
    write_table(store / "idle", "graphs", [spec | {"graph_hash": idle.hash, "document": to_document(idle)}])
    write_table(store / "idle", "measurements", [spec | facts | {"campaign_id": "c", "latency_source": "cuda-graph"}])
    assert "idle" in examples(store)
    messages: list[str] = []
    samples = read_samples(store, "h200", tmp_path / "cache", messages.append)
    assert len(samples) == len(WIDTHS) * len(SETTINGS)
    assert all(len(sample.units) for sample in samples)
    assert len(messages) == 1


def test_what_features_follow_from_is_in_the_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds are features: they follow from the device's facts. Code counts by its version, not by its text."""
    store = tmp_path / "store"
    before = fingerprint(store, "h200")
    assert fingerprint(store, "H200") == before, "the same device by another name"
    assert fingerprint(store, "a100-sxm-40gb") != before
    assert fingerprint(store, "h200", labels=1) != before
    assert fingerprint(store, "h200", labels=2) != fingerprint(store, "h200", labels=1)
    monkeypatch.setattr(training_set, "FEATURES_VERSION", training_set.FEATURES_VERSION + 1)
    assert fingerprint(store, "h200") != before


def test_the_time_of_equal_units_is_unknown_where_only_some_have_kernels(store: Path) -> None:
    example = next(one for one in examples(store).values() if one.unit_us is not None)
    twice = replace(example, units=_repeated(example.units), unit_us=np.concatenate([example.unit_us, example.unit_us]))
    np.testing.assert_allclose(sample_of(twice).unit_us, sample_of(example).unit_us)
    half = replace(twice, unit_us=np.concatenate([example.unit_us, 0 * example.unit_us]))
    assert np.isnan(sample_of(half).unit_us).all()
    none = replace(twice, unit_us=np.zeros(len(twice.units)))
    assert not sample_of(none).unit_us.any()


def _repeated(units: Units) -> Units:
    return replace(
        units,
        **{
            field.name: np.concatenate([value, value]) if isinstance(value, np.ndarray) else (*value, *value)
            for field in fields(units)
            if isinstance(value := getattr(units, field.name), np.ndarray | tuple | list)
        },
    )
