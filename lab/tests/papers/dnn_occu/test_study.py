"""The paper's networks are judged on folds of architectures; a fit is kept, and no side sees another's."""

import gzip
import io
import json
from pathlib import Path

import numpy as np
import pytest

from foretell.errors import DataError
from foretell.training.fusion import FOLDS, fold_of
from lab.papers.dnn_occu import study
from lab.papers.dnn_occu.graphs import OccupancyGraph

EDGES = np.array([[0], [1]])


def counted(specs: list[str]) -> study.Counted:
    graph = OccupancyGraph("a", np.ones((2, 4), np.float32), EDGES, np.ones((1, 3), np.float32))
    rows = [{"spec": spec, "occupancy_weighted": 10.0 + place, "workload_id": spec} for place, spec in enumerate(specs)]
    return study.Counted(rows, [graph] * len(rows))


def write(data: study.Counted, folder: Path, factor: float = 1.1) -> None:
    """What every planned fit would have predicted."""
    for fit in study.plan_fits(data):
        buffer = io.BytesIO()
        notes = '{"losses": [[0.2, 0.3], [0.1, 0.2]], "converged": true, "fit": {"seconds": 9}}'
        np.savez_compressed(buffer, predicted=data.truth[fit.test] * factor, notes=np.array(notes))
        fit.file(folder).write_bytes(buffer.getvalue())


SPECS = [f"synthetic:tiny?width={width}" for width in range(40)]


def test_folds_are_disjoint_and_every_workload_is_asked_for_once(tmp_path: Path) -> None:
    data = counted(SPECS)
    planned = [fit for fit in study.plan_fits(data) if fit.network == "mlp"]
    assert [fit.study for fit in planned] == [str(fold) for fold in range(FOLDS)]
    for fit in planned:
        sides = [{fold_of(SPECS[place]) for place in side.tolist()} for side in (fit.train, fit.validation, fit.test)]
        assert not (sides[0] & sides[1] | sides[0] & sides[2] | sides[1] & sides[2])
    write(data, tmp_path)
    predicted, notes = study.fold_predictions(data, "mlp", tmp_path)
    assert predicted == pytest.approx(data.truth * 1.1)
    first, nodes, edges, fits = study.compare(data, {study.OURS: data.truth, "mlp": predicted}, {"mlp": notes})
    assert first.rows["mlp"]["mape"] == pytest.approx(0.1)
    assert list(nodes.rows) == list(edges.rows) == ["up to 100"]
    assert fits.rows["mlp"]["last loss"] == pytest.approx(0.1)
    assert "dnn-occu" in study.write_report([first, fits], tmp_path).name


def test_what_is_fitted_is_not_fitted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from lab.papers.dnn_occu.fitting import Fit

    fitted = list[str]()
    monkeypatch.setattr(study, "fit_planned", lambda planned, *_: fitted.extend(fit.study for fit in planned))
    data = counted(SPECS)
    planned = study.plan_fits(data)
    write(data, tmp_path)
    planned[3].file(tmp_path).unlink()
    study.fit_side_by_side(planned, data, tmp_path, Fit(), 4, lambda _: None)
    assert fitted == [planned[3].study]


def test_what_was_stopped_by_its_limit_goes_on_under_a_longer_one(tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    notes = '{"losses": [], "converged": false, "fit": {"seconds": 75}}'
    np.savez_compressed(file, predicted=np.ones(1), notes=np.array(notes))
    assert [study._is_done(file, seconds) for seconds in (60, 75, 300, None)] == [True, True, False, False]
    assert not study._is_done(tmp_path / "b.npz", 60)


def test_two_processes_fit_what_one_fits(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from lab.papers.dnn_occu.fitting import Fit

    data, lines = counted(SPECS), list[str]()
    planned = [fit for fit in study.plan_fits(data) if fit.network == "mlp"][:2]
    for folder, processes in ((tmp_path / "one", 1), (tmp_path / "two", 2)):
        study.fit_side_by_side(planned, data, folder, Fit(epochs=2), processes, lines.append)
    assert "2 of 2: mlp" in lines[-1]
    for fit in planned:
        alone, beside = (np.load(fit.file(tmp_path / name))["predicted"] for name in ("one", "two"))
        assert np.allclose(alone, beside)


def test_one_kind_of_transformer_teaches_and_others_are_asked(tmp_path: Path) -> None:
    teachers = [f"timm:vit_tiny_patch16_224.a{number}" for number in range(6)]
    data = counted([*SPECS, *teachers, "timm:swin_tiny", "hf:gpt2?n_layer=2", "hf:clip?patch_size=16"])
    (fit,) = (fit for fit in study.plan_fits(data) if (fit.network, fit.study) == ("mlp", study.ONE_KIND))
    assert len(fit.train) == 4
    assert {*fit.train.tolist(), *fit.validation.tolist()} == {*range(40, 46)}
    assert [data.rows[place]["spec"] for place in fit.test] == ["timm:swin_tiny", "hf:gpt2?n_layer=2"]
    write(data, tmp_path)
    rows = study.one_kind(data, tmp_path)
    assert set(rows) == {"Swin", "GPT-2"}
    assert rows["Swin"]["mlp"] == pytest.approx(0.1)
    assert study.one_kind(counted(SPECS), tmp_path) == {}
    clip = study.errors_by_name(data, {"mlp": data.truth * 1.5}, study.CLIP)
    assert clip == {"two towers": {"count": 1, "mlp": pytest.approx(0.5)}}


def test_utilisation_is_read_where_it_was_measured(tmp_path: Path) -> None:
    assert study.utilisation(tmp_path) == {}
    row = {"spec": "timm:a", "mode": "inference", "dtype": "fp32", "batch_size": 4, "occupancy_weighted": 20.0}
    measured = row | {"nvml_utilisation_pct": 100.0, "nvml_eager_utilisation_pct": 44.0}
    (tmp_path / "utilisation.jsonl.gz").write_bytes(
        gzip.compress("\n".join(map(json.dumps, (measured, row | {"error": "no"}))).encode())
    )
    (cells,) = study.utilisation(tmp_path).values()
    assert cells == {"occupancy": 20.0, "NVML, replayed": 100.0, "NVML, eager": 44.0}


def test_too_few_architectures_are_refused() -> None:
    with pytest.raises(DataError, match="count more architectures"):
        study.plan_fits(counted(SPECS[:1]))
