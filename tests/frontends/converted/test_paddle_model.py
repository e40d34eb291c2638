"""Paddle models on their way to the converter, which a stand-in plays here."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from converted_models import fake_environment
from foretell.errors import InputError, ModelError
from foretell.frontends import ModelRequest, convert, parse_inputs
from foretell.frontends.converted.paddle_model import PaddleFrontend

ECHO_TASK = "open(folder + '/result.json', 'w').write(json.dumps({'error': json.dumps(task), 'kind': 'input'}))"


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETELL_FRONTENDS", str(tmp_path / "environments"))
    fake_environment(tmp_path / "environments", ECHO_TASK, "paddle")


def task_sent(request: ModelRequest) -> dict[str, object]:
    with pytest.raises(InputError) as raised:
        convert(request)
    return dict(json.loads(str(raised.value).partition(": ")[2]))


def test_a_file_and_its_folder_are_one_model(tmp_path: Path) -> None:
    folder = tmp_path / "net"
    folder.mkdir()
    (folder / "inference.json").write_text("{}")
    (folder / "inference.pdiparams").write_text("")
    task = task_sent(ModelRequest(str(folder)))
    assert task == task_sent(ModelRequest(str(folder / "inference.json")))
    assert (task["worker"], task["path"]) == ("paddle", str(folder / "inference.json"))
    first = PaddleFrontend().fingerprint(ModelRequest(str(folder)))
    assert first == PaddleFrontend().fingerprint(ModelRequest(str(folder / "inference.json")))
    (folder / "inference.pdiparams").write_text("other")
    assert PaddleFrontend().fingerprint(ModelRequest(str(folder))) != first


class Layer:
    """Looks like Paddle's own."""

    training = True

    def sublayers(self, include_self: bool) -> list["Layer"]:
        return [self]

    def eval(self) -> None:
        self.training = False


Layer.__module__ = "paddle.nn.layer"


def test_a_layer_is_saved_first_and_trains_on(monkeypatch: pytest.MonkeyPatch) -> None:
    specs: list[tuple[object, ...]] = []

    def save(layer: Layer, path: str, input_spec: list[tuple[object, ...]]) -> None:
        assert not layer.training
        specs.extend(input_spec)
        Path(f"{path}.json").write_text("{}")

    static = SimpleNamespace(InputSpec=lambda *arguments: arguments)
    monkeypatch.setitem(sys.modules, "paddle", SimpleNamespace(static=static, jit=SimpleNamespace(save=save)))
    layer = Layer()
    with pytest.raises(InputError, match="inputs of Layer are not known"):
        convert(ModelRequest(layer))
    task = task_sent(ModelRequest(layer, parse_inputs(["3x8x8", "ids=7:int64"])))
    assert specs == [([None, 3, 8, 8], "float32", "x0"), ([None, 7], "int64", "ids")]
    assert layer.training
    assert not Path(str(task["path"])).exists()
    assert PaddleFrontend().fingerprint(ModelRequest(layer)) is None


def test_a_layer_that_cannot_be_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    def save(*_: object, **__: object) -> None:
        raise ValueError("dynamic\ncontrol flow")

    static = SimpleNamespace(InputSpec=lambda *arguments: arguments)
    monkeypatch.setitem(sys.modules, "paddle", SimpleNamespace(static=static, jit=SimpleNamespace(save=save)))
    with pytest.raises(ModelError, match=r"Layer cannot be saved.*dynamic control flow"):
        convert(ModelRequest(Layer(), parse_inputs(["8"])))
