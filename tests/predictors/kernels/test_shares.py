"""Kernels of a workload by class: all units are counted, times add up, and what is not known is said."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from foretell.devices import find_device, parse_slice
from foretell.features import extract_units
from foretell.features.pooled import DistinctUnits
from foretell.predictors.fitted_files import write_fitted
from foretell.predictors.kernels.classifier import shipped, write
from foretell.predictors.kernels.shares import classifier_for, kernel_shares, likeliest
from foretell.records import Target
from small.small_kernels import CLASSES, fitted
from small.small_samples import H200, blocks, workload

pytest.importorskip("torch")


@pytest.fixture
def only_h200(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_fitted(tmp_path, "kernels-h200.npz", write(fitted()))
    monkeypatch.setattr("foretell.predictors.fitted_files.TRAINED", tmp_path)
    shipped.cache_clear()
    yield
    shipped.cache_clear()


def test_a_device_without_traces_is_named(only_h200: None) -> None:
    classifier, warning = classifier_for(Target(find_device("a100")))
    assert classifier is None
    assert warning is not None
    assert "foretell train -p kernel-classes -d a100" in warning
    assert classifier_for(H200) == (shipped("h200"), None)
    _, warning = classifier_for(replace(H200, runtime="compiled"))
    assert warning is not None
    assert "under the runtime compiled other kernels run" in warning


def test_every_distinct_unit_has_a_class_and_slices_change_none() -> None:
    work = workload(64, 64)
    units = extract_units(work)
    distinct = DistinctUnits.of(units)
    classes = likeliest(work, units, distinct, fitted())
    assert len(classes) == len(distinct)
    assert {name for name, _ in classes} <= set(CLASSES)
    assert all(0 < probability <= 1 for _, probability in classes)
    part = replace(work, target=replace(H200, slice=parse_slice("sms:16", H200.device)))
    on_part = extract_units(part)
    assert sorted(likeliest(part, on_part, DistinctUnits.of(on_part), fitted())) == sorted(classes)


def test_units_of_one_class_are_one_row() -> None:
    units = extract_units(workload(graph=blocks(64, 1024)))
    distinct = DistinctUnits.of(units)
    assert [units.features[place].tolist() for place in distinct.first] == distinct.features.tolist()
    names = {"MatMul": ("tiles", 0.5), "Relu": ("lanes", 1.0)}
    kernels = [names[units.operators[place]] for place in distinct.first]
    spent = np.where([name == "tiles" for name, _ in kernels], 30.0, 10.0) * distinct.counts
    rows = kernel_shares(units, distinct, spent, kernels, 4.0)
    assert [(row.kernel, row.operators, row.count) for row in rows] == [
        ("tiles", ("MatMul",), 6),
        ("lanes", ("Relu",), 6),
    ]
    assert [row.latency_ms for row in rows] == pytest.approx([3.0, 1.0])
    assert [row.probability for row in rows] == pytest.approx([0.5, 1.0])
