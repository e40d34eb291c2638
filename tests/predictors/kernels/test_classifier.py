"""A classifier of kernels: what it tells, and how it is kept."""

import io
import json
from pathlib import Path

import numpy as np
import pytest

from foretell.errors import ModelError
from foretell.features import extract_units
from foretell.features.layouts import operand_layouts
from foretell.predictors.fitted_files import write_fitted
from foretell.predictors.kernels.classifier import KernelClassifier, file_name, rows_by_network, shipped, write
from foretell.predictors.kernels.inputs import kernel_inputs
from small.small_kernels import CLASSES, fitted, labelled
from small.small_samples import blocks, workload

pytest.importorskip("torch")


def units():
    features, layouts, _ = labelled()
    return kernel_inputs(features, layouts, False)


def test_the_likeliest_come_first() -> None:
    ranked = fitted().rank(units(), 2)
    assert ranked.classes.shape == ranked.probability.shape == (len(units()), 2)
    assert (np.diff(ranked.probability, axis=1) <= 1e-6).all()
    assert (ranked.probability.sum(axis=1) <= 1 + 1e-5).all()
    rows = rows_by_network(units())
    assert {CLASSES[number].split()[0] for number in ranked.classes[rows["products"], 0]} == {"cublas"}
    assert {CLASSES[number].split()[0] for number in ranked.classes[rows["others"], 0]} == {"pytorch"}


def test_more_may_be_asked_for_than_there_are() -> None:
    ranked = fitted().rank(units(), 5)
    assert not ranked.probability[:, 2:].any()
    assert (ranked.classes[:, 2:] == -1).all()


def test_it_is_the_same_when_it_is_read_again() -> None:
    data = write(fitted())
    assert data == write(fitted())
    again = KernelClassifier.load(data)
    assert (again.device, again.classes) == ("h200", CLASSES)
    before, after = fitted().rank(units(), 2), again.rank(units(), 2)
    assert np.allclose(before.probability, after.probability, atol=0.02)
    assert (before.classes[:, 0] == after.classes[:, 0]).mean() > 0.97


def changed(**options: object) -> bytes:
    with np.load(io.BytesIO(write(fitted())), allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    card = json.loads(arrays["card"].tobytes()) | options
    arrays["card"] = np.frombuffer(json.dumps(card).encode(), np.uint8)
    data = io.BytesIO()
    np.savez_compressed(data, **arrays)
    return data.getvalue()


def test_what_is_no_classifier_is_refused() -> None:
    for data in (b"", b"PK nothing", write(fitted())[:-400]):
        with pytest.raises(ModelError, match="not a classifier of kernels"):
            KernelClassifier.load(data)
    with pytest.raises(ModelError, match="other features"):
        KernelClassifier.load(changed(schema="old"))


def test_the_shipped_classifier_recognises_products_and_activations() -> None:
    shipped.cache_clear()
    classifier = shipped("h200")
    assert classifier is not None
    work = workload(graph=blocks(4096, 4096), dtype="bf16")
    rows = extract_units(work)
    ranked = classifier.rank(kernel_inputs(rows.features, operand_layouts(work, rows), False), 1)
    names = dict(
        zip(rows.operators, (classifier.classes[number] for number in ranked.classes[:, 0].tolist()), strict=True)
    )
    assert names["MatMul"].startswith("cublas product ")
    assert names["Relu"] == "pytorch pointwise-vectors"
    assert classifier.card["held_out"]["inference"]["at once"] > 0.88
    assert classifier.card["held_out"]["inference"]["among five"] > 0.98


def test_a_device_without_a_file_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretell.predictors.fitted_files.TRAINED", tmp_path)
    shipped.cache_clear()
    assert shipped("a100") is None
    write_fitted(tmp_path, file_name("h200"), write(fitted()))
    classifier = shipped("h200")
    shipped.cache_clear()
    assert classifier is not None
    assert classifier.classes == CLASSES
