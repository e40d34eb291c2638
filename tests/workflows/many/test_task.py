"""A task: a row for each model and each combination of options, whatever happens."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

import foretell
from foretell.errors import ModelError
from foretell.workflows.many import task as module
from foretell.workflows.many.task import Settings, Task, crashed_rows, from_bytes, message_of, run_task, space_function

SPACE = """
from foretell.testing import tiny_graph
def network(number):
    if number == 2:
        raise ValueError("there is no\\nsuch network")
    return tiny_graph(channels=8 + number)
"""
COMBINATIONS = ({"device": "h200", "batch_size": 1}, {"device": "no-gpu", "batch_size": 2})


def settings_of(folder: Path, text: str = SPACE) -> Settings:
    file = folder / "space.py"
    file.write_text(text)
    space_function.cache_clear()
    return Settings(f"{file}:network", hashlib.sha256(text.encode()).hexdigest(), COMBINATIONS, trust=True)


def rows_of(task: Task, settings: Settings) -> list[dict[str, Any]]:
    # through JSON, as a worker gets it
    found: list[dict[str, Any]] = from_bytes(run_task(json.loads(json.dumps(message_of(task, settings))))).to_pylist()
    return found


def test_every_model_and_combination_has_its_row_and_errors_stand_in_their_place(tmp_path: Path) -> None:
    rows = rows_of(Task(0, 1, 4, ()), settings_of(tmp_path))
    assert [(row["number"], row["batch_size"], row["status"]) for row in rows] == [
        (1, 1, "ok"), (1, 2, "error"), (2, 1, "error"), (2, 2, "error"), (3, 1, "ok"), (3, 2, "error"),
    ]  # fmt: skip
    assert rows[2]["error"] == "space.py:network raised ValueError: there is no such network"
    assert "no-gpu" in rows[1]["error"]
    assert (rows[1]["latency_ms"], rows[2]["name"]) == (None, "network 2")
    from foretell.testing import tiny_graph

    alone = foretell.predict(tiny_graph(channels=9))
    assert alone.latency_ms is not None
    assert rows[0]["latency_ms"] == pytest.approx(alone.latency_ms.value)
    assert rows[0]["latency_ms_high"] == pytest.approx(alone.latency_ms.high)
    assert (rows[0]["fits"], rows[0]["predictor"], rows[0]["macs"]) == ("yes", alone.predictor, alone.facts["macs"])


def test_names_are_files_or_specs(tmp_path: Path) -> None:
    file = tmp_path / "bad.onnx"
    file.write_bytes(b"nothing")
    rows = rows_of(Task(3, 30, 32, (str(file), "absent.onnx")), Settings("", "", ({"batch_size": 1},), trust=False))
    assert [(row["number"], row["name"], row["status"]) for row in rows] == [
        (30, str(file), "error"), (31, "absent.onnx", "error"),
    ]  # fmt: skip
    assert all("\n" not in row["error"] for row in rows)


def test_a_bug_of_ours_takes_one_row_and_not_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = module.predict_many

    def broken(asked: Any, **options: Any) -> Any:
        asked = list(asked)
        if any(model.name == "tiny9" for model, _ in asked):
            raise KeyError("lost")
        return real(asked, **options)

    monkeypatch.setattr(module, "predict_many", broken)
    text = SPACE.replace("return tiny_graph(channels=8 + number)", "return named(number)")
    text += "\nimport dataclasses\ndef named(number):\n"
    text += "    return dataclasses.replace(tiny_graph(), name=f'tiny{8 + number}')\n"
    settings = settings_of(tmp_path, text)
    rows = rows_of(Task(0, 0, 2, ()), Settings(settings.space, settings.digest, COMBINATIONS[:1], trust=True))
    assert [row["status"] for row in rows] == ["ok", "error"]
    assert "Internal error (KeyError: 'lost')" in rows[1]["error"]


def test_another_file_or_another_foretell_on_a_machine_is_refused(tmp_path: Path) -> None:
    settings, task = settings_of(tmp_path), Task(0, 0, 1, ())
    message = message_of(task, settings)
    message["settings"] = {**message["settings"], "features_version": -1}
    with pytest.raises(ModelError, match="another foretell"):
        run_task(message)
    (tmp_path / "space.py").write_text(SPACE + "#")
    space_function.cache_clear()
    with pytest.raises(ModelError, match="is not the file that the plan was begun with"):
        run_task(message_of(task, settings))
    (tmp_path / "space.py").unlink()
    with pytest.raises(ModelError, match="cannot read"):
        run_task(message_of(task, settings))


def test_halves_have_all_models_once_and_a_crash_has_all_rows() -> None:
    task = Task(4, 10, 13, ("a", "b", "c"))
    first, second = task.halves()
    assert first.names + second.names == task.names
    assert (first.first, first.last, second.first, second.last) == (10, 11, 11, 13)
    rows = crashed_rows(second, Settings("", "", COMBINATIONS, trust=False), "its process was killed")
    assert [(row["number"], row["name"]) for row in rows] == [(11, "b"), (11, "b"), (12, "c"), (12, "c")]
    assert {row["error"] for row in rows} == {"No worker could predict it: its process was killed."}
