"""Judging a classifier of kernels: by units and by time, on folds that it has not seen, against the commonest class."""

from pathlib import Path

import numpy as np
import pytest

from foretell.errors import DataError
from foretell.predictors.kernels.classifier import KernelClassifier
from foretell.training import kernel_classes
from foretell.training.examples.kernel_labels import KernelLabels
from foretell.training.kernel_classes import COMMONEST, NETWORK, evaluate, judge, scores, tables, train, write_report
from small.small_kernels import CLASSES, QUICK, labelled

pytest.importorskip("torch")


@pytest.fixture
def labels() -> KernelLabels:
    features, layouts, label = labelled()
    rows, seen = len(label), np.arange(len(label))
    return KernelLabels(
        features, layouts, label, np.ones(rows), 1.0 + seen % 7, seen // 4 % 2, seen % 9 == 0,
        np.zeros(rows, bool), CLASSES,
    )  # fmt: skip


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return [tmp_path / f"{fold}.npz" for fold in range(5)]


def test_folds_are_predicted_by_fits_to_the_other_folds(labels: KernelLabels, files: list[Path]) -> None:
    judged = judge(labels, "h200", files, QUICK)
    everything = np.ones(len(labels), bool)
    network_scores, baseline = (scores(labels, judged[name], everything) for name in (NETWORK, COMMONEST))
    assert network_scores["at once"] > max(0.9, baseline["at once"])
    assert network_scores["among five"] == baseline["among five"] == 1.0
    assert [file.exists() for file in files] == [True, True, False, False, False]
    again = judge(labels, "h200", files, {})  # nothing is left to fit
    assert np.array_equal(again[NETWORK], judged[NETWORK])


def test_one_fold_is_not_enough(labels: KernelLabels, files: list[Path]) -> None:
    alone = KernelLabels(**{**vars(labels), "fold": np.zeros(len(labels), np.intp)})
    with pytest.raises(DataError, match="one fold"):
        judge(alone, "h200", files, QUICK)


def test_time_weighs_what_took_long() -> None:
    time_us = np.array([1.0, 9.0])
    two = KernelLabels(
        np.zeros((2, 1), np.float32), np.zeros((2, 1), np.float32), np.array([0, 1]), np.array([3.0, 1.0]), time_us,
        np.zeros(2, np.intp), np.zeros(2, bool), np.zeros(2, bool), CLASSES,
    )  # fmt: skip
    score = scores(two, np.array([[0, 1], [2, 1]]), np.ones(2, bool))
    expected = {"at once": 0.75, "among five": 1.0, "at once, by time": 0.1, "among five, by time": 1.0}
    assert score == pytest.approx(expected)


def test_benches_do_not_judge(labels: KernelLabels) -> None:
    wrong = np.where(labels.bench[:, None], -1, labels.label[:, None])
    overall, by_kernel = tables(labels, {NETWORK: wrong})
    assert overall.rows[NETWORK]["at once"] == 1.0
    assert f"{int((~labels.bench).sum()):,} units" in overall.title
    assert sum(row["count"] for row in by_kernel.rows.values()) == int((~labels.bench).sum())
    assert sum(row["time"] for row in by_kernel.rows.values()) == pytest.approx(1.0)
    training = np.arange(len(labels)) % 2 == 0
    both = tables(KernelLabels(**{**vars(labels), "training": training}), {NETWORK: wrong})
    names = [table.title.partition(":")[0].partition(",")[0] for table in both]
    assert names == ["Inference and training", "Inference", "Inference", "Training steps", "Training steps"]


def test_a_classifier_is_written_with_its_scores(
    labels: KernelLabels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_classes, "read_labels", lambda *_: labels)
    file = train(tmp_path, "NVIDIA H200", tmp_path / "cache", tmp_path / "out", QUICK)
    assert file.name == "kernels-h200.npz"
    card = KernelClassifier.load(file.read_bytes()).card
    assert card["units"] == len(labels)
    messages: list[str] = []
    report_tables = evaluate(tmp_path, "h200", tmp_path / "cache", QUICK, messages.append)
    assert not messages  # the folds are kept
    assert card["held_out"]["inference"] == pytest.approx(report_tables[0].rows[NETWORK])
    text = write_report(report_tables, tmp_path / "reports").read_text(encoding="utf-8")
    assert "| cublas product |" in text
    assert "foretell evaluate kernel-classes --report" in text
