"""Classes of kernels of the samples' units: found by what a unit is, kept, and never given to what was not traced."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyarrow")

from foretell.predictors.unit.rows import UnitRows
from foretell.training.examples import unit_classes
from foretell.training.examples.kernel_labels import read_labels
from foretell.training.examples.samples import read_samples
from foretell.training.examples.unit_classes import UNKNOWN, match, read_unit_classes
from small.small_store import WIDTHS, write_store, write_table


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_store(tmp_path_factory.mktemp("store"), WIDTHS[:3])
    write_table(folder / "one", "kernel_names", [{"name_id": 1, "name": "splitKreduce_kernel"}])
    return folder


def test_traced_units_have_a_class(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = read_samples(store, "h200", tmp_path)
    classes = read_unit_classes(samples, store, "h200", tmp_path)
    assert classes is not None
    rows = UnitRows.of(samples)
    assert (classes[rows.is_traced] == 0).mean() > 0.9  # there is one class only
    assert (classes[~rows.is_traced] == UNKNOWN).all()
    monkeypatch.setattr(unit_classes, "read_labels", lambda *_: pytest.fail("read again"))
    np.testing.assert_array_equal(read_unit_classes(samples, store, "h200", tmp_path), classes)


def test_equal_units_have_the_class_of_most(store: Path, tmp_path: Path) -> None:
    rows = UnitRows.of(read_samples(store, "h200", tmp_path))
    labels = read_labels(store, "h200", tmp_path)
    first = np.flatnonzero(rows.is_traced)[:1]
    few, many = (
        replace(labels, features=rows.features[np.repeat(first, 3)], label=np.array([4, 7, 4]), counts=np.array(counts))
        for counts in ([1.0, 2.5, 1.0], [1.0, 1.5, 1.0])
    )
    assert match(rows, few)[first] == 7
    assert match(rows, many)[first] == 4
    others = ~(rows.features == rows.features[first]).all(axis=1)
    assert (match(rows, few)[others] == UNKNOWN).all()


def test_a_store_without_traces_has_none(store: Path, tmp_path: Path) -> None:
    messages: list[str] = []
    assert read_unit_classes([], tmp_path / "nothing", "h200", tmp_path, messages.append) is None
    assert messages[0].startswith("networks do not learn which kernels run")
