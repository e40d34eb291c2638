"""Converters that hang, die, take too much memory or write nonsense: one clear line, no process, no file stays."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import onnx
import pytest

from command_line import run
from converted_models import fake_environment, keras_file
from foretell.errors import InputError, MissingExtraError, ModelError, UntrustedModelError
from foretell.frontends import ModelRequest, convert
from foretell.frontends.caged import read_caged
from foretell.frontends.converted import converter, environments
from foretell.frontends.converted.converter import digest_files, read_bounds
from foretell.graph import Graph
from foretell.processes.parent import group_bytes
from foretell.testing import tiny_onnx
from foretell.workflows.workload import load_graph

TALK = "result = lambda text: open(folder + '/result.json', 'w').write(text)\n"


@pytest.fixture(autouse=True)
def rooms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Environments and temporary files of the test's own."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("FORETELL_FRONTENDS", str(tmp_path / "environments"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return keras_file(tmp_path / "m.keras", {"class_name": "Functional"})


def fail(rooms: Path, model: Path, body: str) -> str:
    """The message of a conversion by a converter that does ``body``; nothing may be left of it."""
    fake_environment(rooms / "environments", body)
    with pytest.raises(ModelError) as raised:
        convert(ModelRequest(str(model)))
    assert not list((rooms / "temporary").iterdir())
    assert "\n" not in str(raised.value)
    return str(raised.value)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that is dead and not collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pid: int) -> bool:
    until = time.monotonic() + 120
    while is_alive(pid) and time.monotonic() < until:
        time.sleep(0.05)
    return not is_alive(pid)


def test_what_a_converter_writes_is_read(rooms: Path, model: Path) -> None:
    (rooms / "good.onnx").write_bytes(tiny_onnx().SerializeToString())
    copy = f"open(folder + '/model.onnx', 'wb').write(open({str(rooms / 'good.onnx')!r}, 'rb').read())"
    checks = "assert sys.stdin.read() == '' and os.environ['TMPDIR'] == os.environ['HOME'] == folder == os.getcwd()\n"
    checks += "assert os.environ['POLYGRAPHY_AUTOINSTALL_DEPS'] == '0' and os.getpgid(0) == os.getpid()\n"
    fake_environment(rooms / "environments", checks + TALK + copy + "\nresult('{}')")
    graph = convert(ModelRequest(str(model)))
    assert graph.parameter_count == load_graph(tiny_onnx()).parameter_count
    assert convert(ModelRequest(str(model))).hash == graph.hash  # from the cache
    assert not list((rooms / "temporary").iterdir())


def test_what_is_not_plain_is_read_in_a_cage(rooms: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readers: list[str] = []

    def record(reader: str, *arguments: object) -> Graph:
        readers.append(reader)
        return read_caged(reader, *arguments)

    monkeypatch.setattr(converter, "read_caged", record)
    converted = tiny_onnx()
    (rooms / "good.onnx").write_bytes(converted.SerializeToString())
    copy = f"open(folder + '/model.onnx', 'wb').write(open({str(rooms / 'good.onnx')!r}, 'rb').read())"
    fake_environment(rooms / "environments", TALK + copy + "\nresult('{}')")
    plain = convert(ModelRequest(str(model)), use_cache=False)
    assert not readers
    limited = convert(ModelRequest(str(model), timeout_s=300), use_cache=False)
    function = onnx.helper.make_function(
        "local", "F", ["a"], ["b"], [onnx.helper.make_node("Relu", ["a"], ["b"])], converted.opset_import
    )
    converted.functions.append(function)
    (rooms / "good.onnx").write_bytes(converted.SerializeToString())
    with_function = convert(ModelRequest(str(model)), use_cache=False)
    assert readers == ["foretell.frontends.converted.converter:read_converted"] * 2
    assert plain.hash == limited.hash == with_function.hash


def test_a_hanging_converter_and_its_children_are_killed(
    rooms: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORETELL_CONVERTER_TIMEOUT_S", "3")
    note = rooms / "pid"
    body = (
        f"child = subprocess.Popen(['sleep', '600'])\nopen({str(note)!r}, 'w').write(str(child.pid))\ntime.sleep(600)"
    )
    assert "longer than 3 s" in fail(rooms, model, body)
    assert gone(int(note.read_text()))


def test_a_converter_that_takes_too_much_memory_is_killed(
    rooms: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORETELL_CONVERTER_MEMORY_MIB", "80")
    message = fail(rooms, model, "held = b'x' * (200 << 20)\ntime.sleep(600)")
    assert "more than 80 MiB" in message
    assert "FORETELL_CONVERTER_MEMORY_MIB" in message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "was killed by SIGSEGV"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "ran out of memory"),
        ("print('one'); sys.exit('the last words')", "exited with code 1. Its last line: the last words"),
        ("pass", "finished without a result"),
        (TALK + "result('nonsense')", "finished without a result"),
        (TALK + "result('{}')", "wrote no ONNX model"),
        (TALK + "open(folder + '/model.onnx', 'wb').write(b'garbage'); result('{}')", "wrote no ONNX model"),
        (TALK + "os.symlink('/etc/passwd', folder + '/model.onnx'); result('{}')", "wrote no ONNX model"),
        (TALK + "open(folder + '/model.onnx', 'wb').truncate(2**30); result('{}')", "a converted model has at most"),
        ("open(folder + '/result.json', 'wb').truncate(2**30)", "finished without a result"),
        (TALK + "result('[' * 100_000)", "finished without a result"),
        (TALK + "result(json.dumps({'error': 'no such layer', 'kind': 'model'}))", "m.keras: no such layer"),
        ("print('x' * 10_000_000, flush=True); sys.exit(3)", "exited with code 3"),
        ("subprocess.Popen(['sleep', '600']); sys.exit(4)", "exited with code 4"),
    ],
)
def test_a_converter_that_dies_or_writes_nonsense_is_an_error(
    rooms: Path, model: Path, body: str, message: str
) -> None:
    assert message in fail(rooms, model, body)


def test_the_kind_of_an_error_is_kept(rooms: Path, model: Path) -> None:
    fake_environment(rooms / "environments", TALK + "result(json.dumps({'error': 'why', 'kind': task['format']}))")
    with pytest.raises(ModelError, match=r"m\.keras: why"):
        convert(ModelRequest(str(model)))
    body = TALK + "result(json.dumps({'error': 'code', 'kind': 'untrusted'}))"
    (rooms / "environments/keras/bin/python").unlink()
    (rooms / "environments/keras/foretell.json").unlink()
    (rooms / "environments/keras/bin").rmdir()
    (rooms / "environments/keras").rmdir()
    fake_environment(rooms / "environments", body)
    with pytest.raises(UntrustedModelError, match="code"):
        convert(ModelRequest(str(model)))


@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_kills_the_converter(rooms: Path, model: Path, name: signal.Signals) -> None:
    note = rooms / "pid"
    fake_environment(rooms / "environments", f"open({str(note)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)")
    # a shell that runs tests in the background has them ignore Ctrl-C, and Python then leaves it at that
    listen = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{listen}; import foretell; foretell.load_graph({str(model)!r})"
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL, env={**os.environ}) as process:
        try:
            until = time.monotonic() + 120
            while not (note.exists() and note.read_text()) and time.monotonic() < until:
                time.sleep(0.05)
            process.send_signal(name)
            assert process.wait(120) != 0
        finally:
            process.kill()
    assert gone(int(note.read_text()))
    assert not list((rooms / "temporary").iterdir())


def test_on_the_command_line_it_is_one_line_and_code_2(
    rooms: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_environment(rooms / "environments", "os.kill(os.getpid(), signal.SIGABRT)")
    shown = run(capsys, "inspect", str(model), code=2)
    assert shown == "foretell: The converter of m.keras was killed by SIGABRT.\n"


def test_a_framework_that_is_not_there_is_named(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environments, "available", lambda module: False)
    with pytest.raises(MissingExtraError, match="needs TensorFlow and Keras"):
        load_graph(model)
    assert run(capsys, "predict", str(model), code=2).endswith("foretell frontends install keras\n")


def test_bounds_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_bounds().timeout_s == 300
    monkeypatch.setenv("FORETELL_CONVERTER_TIMEOUT_S", "7")
    assert read_bounds().timeout_s == 7
    for wrong in ("soon", "0", "-3", "inf", "nan"):
        monkeypatch.setenv("FORETELL_CONVERTER_TIMEOUT_S", wrong)
        with pytest.raises(InputError, match="FORETELL_CONVERTER_TIMEOUT_S"):
            read_bounds()


def test_the_memory_of_a_group_is_that_of_its_processes() -> None:
    assert group_bytes(os.getpgid(0)) > 10 << 20
    assert group_bytes(2**22 + 1) == 0


def test_different_contents_have_different_digests(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    before = digest_files(tmp_path)
    assert digest_files(tmp_path / "a") == before
    (tmp_path / "a").write_bytes(b"2")
    assert digest_files(tmp_path) != before
    with pytest.raises(ModelError, match="Cannot read"):
        digest_files(tmp_path / "absent")
