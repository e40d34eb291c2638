"""Keras and TensorFlow models on their way to the converter, which a stand-in plays here."""

import json
from pathlib import Path

import pytest

from converted_models import fake_environment, keras_file
from foretell.errors import InputError, ModelError
from foretell.frontends import ModelRequest, convert, parse_inputs
from foretell.frontends.converted.keras_model import KerasFrontend, TensorFlowFrontend

ECHO_TASK = "open(folder + '/result.json', 'w').write(json.dumps({'error': json.dumps(task), 'kind': 'input'}))"


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETELL_FRONTENDS", str(tmp_path / "environments"))
    fake_environment(tmp_path / "environments", ECHO_TASK)


def task_sent(request: ModelRequest) -> dict[str, object]:
    """What the converter is told."""
    with pytest.raises(InputError) as raised:
        convert(request)
    return dict(json.loads(str(raised.value).partition(": ")[2]))


def test_an_archive(tmp_path: Path) -> None:
    path = keras_file(tmp_path / "m.keras", {})
    task = task_sent(ModelRequest(str(path), parse_inputs(["image=8x8x3:fp16"]), trust=True))
    assert task == {
        "worker": "keras",
        "format": "keras",
        "path": str(path),
        "inputs": [["image", [8, 8, 3], "fp16"]],
        "trust": True,
        "memory_limit_gib": None,
        "timeout_s": None,
    }


def test_hdf5_a_folder_and_a_graph(tmp_path: Path) -> None:
    (tmp_path / "m.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    assert task_sent(ModelRequest(str(tmp_path / "m.h5")))["format"] == "h5"
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved/saved_model.pb").write_bytes(b"x")
    assert task_sent(ModelRequest(str(tmp_path / "saved")))["format"] == "saved_model"
    (tmp_path / "f.pb").write_bytes(b"\x0a\x05\x0a\x01a")
    assert task_sent(ModelRequest(str(tmp_path / "f.pb")))["format"] == "graph_def"


def test_an_archive_that_unpacks_to_far_too_much(tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "bomb.keras", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", "{}")
        archive.writestr("model.weights.h5", bytes(20_000_000))
    with pytest.raises(ModelError, match="too large"):
        convert(ModelRequest(str(tmp_path / "bomb.keras")))


class Model:
    """Looks like Keras' own."""

    def __init__(self, fails: bool) -> None:
        self.fails = fails

    def save(self, path: str) -> None:
        if self.fails:
            raise NotImplementedError("no\nconfig")
        keras_file(Path(path), {})


Model.__module__ = "keras.models"


def test_an_object_is_saved_first_and_nothing_of_it_stays() -> None:
    task = task_sent(ModelRequest(Model(fails=False)))
    assert task["format"] == "keras"
    assert not Path(str(task["path"])).exists()
    with pytest.raises(ModelError, match=r"cannot be saved.*NotImplementedError: no config"):
        convert(ModelRequest(Model(fails=True)))
    assert KerasFrontend().fingerprint(ModelRequest(Model(fails=False))) is None


def test_fingerprints_follow_content_and_trust(tmp_path: Path) -> None:
    path = keras_file(tmp_path / "m.keras", {})
    first = KerasFrontend().fingerprint(ModelRequest(str(path)))
    assert first is not None
    assert "none 0.0" in first
    assert KerasFrontend().fingerprint(ModelRequest(str(path), trust=True)) != first
    keras_file(path, {"other": 1})
    assert KerasFrontend().fingerprint(ModelRequest(str(path))) != first
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved/saved_model.pb").write_bytes(b"x")
    assert "saved" in str(TensorFlowFrontend().fingerprint(ModelRequest(str(tmp_path / "saved"))))
