"""The paper's networks are judged on folds of architectures; a fit is kept, and no side sees another's."""

import io
from pathlib import Path

import numpy as np
import pytest

from foretell.errors import DataError
from foretell.training.fusion import FOLDS, fold_of
from lab.papers.dnn_occu import study
from lab.papers.dnn_occu.graphs import OccupancyGraph, steps_between

EDGES = np.array([[0], [1]])


def counted(specs: list[str]) -> study.Counted:
    graph = OccupancyGraph(
        "a", np.ones((2, 4), np.float32), EDGES, np.ones((1, 3), np.float32), np.ones(2, np.int64),
        steps_between(2, EDGES),
    )  # fmt: skip
    rows = [{"spec": spec, "occupancy_weighted": 10.0 + place, "workload_id": spec} for place, spec in enumerate(specs)]
    return study.Counted(rows, [graph] * len(rows))


SPECS = [f"synthetic:tiny?width={width}" for width in range(40)]


def test_folds_are_disjoint_and_a_fit_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, calls = counted(SPECS), []

    def record(data: study.Counted, name: str, sides: tuple[np.ndarray, ...], *_: object) -> bytes:
        calls.append([{fold_of(SPECS[place]) for place in side.tolist()} for side in sides])
        buffer = io.BytesIO()
        notes = '{"losses": [[0.2, 0.3], [0.1, 0.2]], "converged": true}'
        np.savez_compressed(buffer, predicted=data.truth[sides[2]] * 1.1, notes=np.array(notes))
        return buffer.getvalue()

    monkeypatch.setattr(study, "_fit", record)
    predicted, notes = study.fold_predictions(data, "mlp", tmp_path, None, "cpu", lambda _: None)
    assert len(calls) == FOLDS
    assert all(not (train & validation | train & test | validation & test) for train, validation, test in calls)
    assert predicted == pytest.approx(data.truth * 1.1)
    again, _ = study.fold_predictions(data, "mlp", tmp_path, None, "cpu", lambda _: None)
    assert len(calls) == FOLDS
    assert np.array_equal(again, predicted)
    first, nodes, edges, fits = study.compare(data, {study.OURS: data.truth, "mlp": predicted}, {"mlp": notes})
    assert first.rows["mlp"]["mape"] == pytest.approx(0.1)
    assert list(nodes.rows) == list(edges.rows) == ["up to 100"]
    assert fits.rows["mlp"]["last loss"] == pytest.approx(0.1)
    assert "dnn-occu" in study.write_report([first, fits], tmp_path).name


def test_a_study_without_its_models_is_left_out(tmp_path: Path) -> None:
    assert study.learn_from_one_kind(counted(SPECS), "mlp", tmp_path, None, "cpu", lambda _: None) == {}


def test_one_kind_of_transformer_teaches_and_others_are_asked(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    teachers = [f"timm:vit_tiny_patch16_224.a{number}" for number in range(6)]
    cells = study.learn_from_one_kind(
        counted([*teachers, "timm:swin_tiny", "hf:gpt2?n_layer=2"]), "mlp", tmp_path, 0.01, "cpu", lambda _: None
    )
    assert set(cells) == {"Swin", "GPT-2"}
    assert (tmp_path / "mlp-one-kind.npz").exists()


def test_too_few_architectures_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="count more architectures"):
        study.fold_predictions(counted(SPECS[:1]), "mlp", tmp_path, None, "cpu", lambda _: None)
