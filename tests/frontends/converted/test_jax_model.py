"""Functions of the running program on their way to the converter, which a stand-in plays here."""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from converted_models import fake_environment
from foretell.errors import InputError, MissingExtraError, ModelError
from foretell.frontends import ModelRequest, convert, parse_inputs
from foretell.frontends.converted import environments, jax_model
from foretell.frontends.converted.jax_model import JaxFrontend
from foretell.testing import tiny_onnx

TALK = "result = lambda text: open(folder + '/result.json', 'w').write(text)\n"


def double(x: Any) -> Any:
    return x


@pytest.fixture(autouse=True)
def rooms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Environments and temporary files of the test's own, no framework installed, an object that is written as text."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("FORETELL_FRONTENDS", str(tmp_path / "environments"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(environments, "available", lambda module: False)
    monkeypatch.setattr(jax_model, "require", lambda *_, **__: None)

    def write(source: Any, folder: Path, purpose: str, *, own: bool) -> dict[str, Any]:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "given.pickle").write_text("the object")
        return {"search": ["here"]}

    monkeypatch.setattr(jax_model, "write_object", write)
    return tmp_path


def jax_request(rooms: Path, body: str) -> ModelRequest:
    fake_environment(rooms / "environments", TALK + body, "jax")
    name = tiny_onnx().graph.input[0].name
    sizes = "x".join(str(d.dim_value) for d in tiny_onnx().graph.input[0].type.tensor_type.shape.dim[1:])
    return ModelRequest(double, parse_inputs([f"{name}={sizes}"]))


def fail(rooms: Path, body: str) -> str:
    """The message of a conversion by a converter that does ``body``; nothing may be left of it."""
    with pytest.raises(ModelError) as raised:
        convert(jax_request(rooms, body))
    assert not list((rooms / "temporary").iterdir())
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_function_is_written_and_converted_elsewhere(rooms: Path) -> None:
    (rooms / "good.onnx").write_bytes(tiny_onnx().SerializeToString())
    body = "assert open(folder + '/given.pickle').read() == 'the object' and task['search'] == ['here']\n"
    body += "assert (task['worker'], task['format']) == ('jax', 'object') and os.environ['JAX_PLATFORMS'] == 'cpu'\n"
    body += f"open(folder + '/model.onnx', 'wb').write(open({str(rooms / 'good.onnx')!r}, 'rb').read())\nresult('{{}}')"
    graph = convert(jax_request(rooms, body))
    assert graph.parameter_count == 248
    assert graph.name == "double"
    assert JaxFrontend().fingerprint(ModelRequest(double)) is None
    assert not list((rooms / "temporary").iterdir())


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "The converter of double was killed by SIGSEGV"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "ran out of memory"),
        ("sys.exit('the last words')", "exited with code 1. Its last line: the last words"),
        ("pass", "finished without a result"),
        ("result('nonsense')", "finished without a result"),
        ("open(folder + '/model.onnx', 'wb').write(b'garbage'); result('{}')", "wrote no ONNX model"),
        ("result(json.dumps({'error': 'no plugin', 'kind': 'model'}))", "double: no plugin"),
    ],
)
def test_a_converter_that_dies_or_writes_nonsense(rooms: Path, body: str, message: str) -> None:
    assert message in fail(rooms, body)


def test_a_hanging_converter_and_its_children_are_killed(rooms: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETELL_CONVERTER_TIMEOUT_S", "3")
    note = rooms / "pid"
    body = (
        f"child = subprocess.Popen(['sleep', '600'])\nopen({str(note)!r}, 'w').write(str(child.pid))\ntime.sleep(600)"
    )
    assert "Converting double took longer than 3 s" in fail(rooms, body)
    state = Path(f"/proc/{note.read_text()}/stat")
    for _ in range(2400):
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.05)
    pytest.fail("what the converter has started still runs")


def test_a_converter_that_takes_too_much_memory_is_killed(rooms: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETELL_CONVERTER_MEMORY_MIB", "80")
    assert "more than 80 MiB" in fail(rooms, "held = b'x' * (200 << 20)\ntime.sleep(600)")


def test_its_inputs_must_be_given(rooms: Path) -> None:
    fake_environment(rooms / "environments", "", "jax")
    with pytest.raises(InputError, match="inputs of double are not known"):
        convert(ModelRequest(double))


def test_an_object_that_cannot_be_pickled_is_an_error(rooms: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise TypeError("cannot pickle\na lock")

    monkeypatch.setattr(jax_model, "write_object", fails)
    message = fail(rooms, "")
    assert message.startswith("double cannot be sent to the converter's process: TypeError: cannot pickle a lock. ")
    assert message.endswith("net.py:build")


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    request = ModelRequest(double, parse_inputs(["4"]))
    with pytest.raises(
        MissingExtraError, match=r"needs jax2onnx: pip install 'foretell\[jax\]', or foretell frontends"
    ):
        convert(request)
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(MissingExtraError, match=r"needs cloudpickle: pip install 'foretell\[jax\]'"):
        convert(request)


def test_the_running_python_comes_first(rooms: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the versions that the object is made of."""
    seen: list[environments.Environment] = []

    def run(*_: object, environment: environments.Environment, **__: object) -> None:
        seen.append(environment)
        raise ModelError("enough")

    monkeypatch.setattr(jax_model, "run_converter", run)
    request = jax_request(rooms, "")
    for installed in (False, True):
        monkeypatch.setattr(environments, "available", lambda module, there=installed: there)
        with pytest.raises(ModelError, match="enough"):
            convert(request)
    assert [environment.own for environment in seen] == [True, False]


def test_a_python_file_asks_for_trust(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("import jax")
    with pytest.raises(ModelError, match="--trust"):
        convert(ModelRequest(f"{tmp_path / 'net.py'}:build"))


def test_no_pickle_of_a_user_is_opened(tmp_path: Path) -> None:
    for name in ("given.pickle", "given.pkl"):
        (tmp_path / name).write_bytes(json.dumps("x").encode())
        with pytest.raises(ModelError, match="never opened"):
            convert(ModelRequest(str(tmp_path / name)))
