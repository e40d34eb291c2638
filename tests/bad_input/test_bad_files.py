"""Bad input ends in one line on stderr, exit code 2, nothing printed, left behind or run: files."""

import io
import os
import pickle
import random
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import onnx
import pytest
from google.protobuf.message import DecodeError
from onnx import helper

from bad_models import Payload, Refuse, files_below, model_of, relu, save, tensor
from foretell.cli.main import main
from foretell.testing import tiny_onnx


def offsets(length: int) -> list[int]:
    return sorted({round(i * (length - 1) / 49) for i in range(50)})


@pytest.fixture
def without_a_cage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged file is read in a cage: here in this process, since fifty processes take long."""
    monkeypatch.setattr("foretell.frontends.caged.confined", lambda: True)


@pytest.mark.usefixtures("without_a_cage")
def test_truncated_at_fifty_offsets(refuse: Refuse, place: Path) -> None:
    model = tiny_onnx()
    for i in range(20):  # long enough for fifty different cuts in all its parts
        model.graph.node.append(
            helper.make_node("Relu", ["y" if i == 0 else f"y{i}"], [f"y{i + 1}"], name=f"/more/{i}")
        )
    model.graph.output[0].name = "y20"
    content = model.SerializeToString()
    cuts = offsets(len(content))
    assert len(cuts) == 50
    for cut in cuts:
        path = place / "cut.onnx"
        path.write_bytes(content[:cut])
        refuse("predict", path)


@pytest.mark.usefixtures("without_a_cage")
def test_truncated_example_at_fifty_offsets(refuse: Refuse, place: Path) -> None:
    content = (Path(__file__).parents[2] / "examples" / "resnet50.onnx").read_bytes()
    path = place / "cut.onnx"
    for cut in offsets(len(content)):
        path.write_bytes(content[:cut])
        refuse("inspect", path)


def test_truncated_inside_the_graph_at_every_byte_never_passes(refuse: Refuse, place: Path) -> None:
    """A graph cut between two fields can parse: it must still be refused."""
    model = tiny_onnx()
    content = model.graph.SerializeToString()
    parsed = 0
    for cut in range(len(content)):
        part = onnx.GraphProto()
        try:
            part.ParseFromString(content[:cut])
        except DecodeError:
            continue
        parsed += 1
        shorter = onnx.ModelProto()
        shorter.CopyFrom(model)
        shorter.graph.CopyFrom(part)
        refuse("inspect", save(shorter, place / "part.onnx"))
    assert parsed > 3


@pytest.mark.parametrize("suffix", [".onnx", ".pt2", ".pt", ".model"])
def test_random_bytes(refuse: Refuse, place: Path, suffix: str) -> None:
    _refuse_noise(refuse, place / f"noise{suffix}", range(2))


@pytest.mark.usefixtures("without_a_cage")
@pytest.mark.parametrize("suffix", [".onnx", ".pt2", ".pt", ".model"])
def test_random_bytes_without_a_cage(refuse: Refuse, place: Path, suffix: str) -> None:
    _refuse_noise(refuse, place / f"noise{suffix}", range(8))


def _refuse_noise(refuse: Refuse, path: Path, seeds: range) -> None:
    for seed in seeds:
        path.write_bytes(random.Random(seed).randbytes(10 ** (seed % 4 + 1)))
        refuse("predict", path)


@pytest.mark.parametrize(
    "content", [b"", b"hello\n", b"{}", b"PK\x03\x04 not a zip", b"\x00" * 100, b"foretell-graph\nxx"]
)
@pytest.mark.parametrize("suffix", [".onnx", ".pt2", ".txt", ".json"])
def test_not_a_model(refuse: Refuse, place: Path, content: bytes, suffix: str) -> None:
    if suffix == ".json":
        pytest.importorskip("transformers")
    path = place / f"model{suffix}"
    path.write_bytes(content)
    refuse("predict", path)


def test_flipped_bits(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A damaged file may still be a model; if it is not, it is refused as cleanly as any."""
    content = bytearray(tiny_onnx(batch=2).SerializeToString())
    path = place / "flipped.onnx"
    generator = random.Random(7)
    for _ in range(120):
        damaged = bytearray(content)
        for _ in range(generator.randint(1, 3)):
            damaged[generator.randrange(len(damaged))] ^= 1 << generator.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(SystemExit) as ended:
            main(["inspect", str(path), "--json", "--no-cache"])
        shown = capsys.readouterr()
        assert ended.value.code in (0, 2), (shown.err, bytes(damaged))
        assert shown.err.count("\n") == (1 if ended.value.code else 0)


def test_a_folder_a_missing_file_and_odd_names(refuse: Refuse, place: Path) -> None:
    (place / "folder.onnx").mkdir()
    assert "config.json" in refuse("predict", place / "folder.onnx")
    assert "no file" in refuse("predict", place / "absent.onnx")
    refuse("predict", "")
    refuse("predict", "a\0b.onnx")
    refuse("predict", "x" * 5000)
    refuse("predict", "net.py")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_or_device_is_not_waited_for(refuse: Refuse, place: Path) -> None:
    os.mkfifo(place / "pipe.onnx")
    refuse("predict", place / "pipe.onnx")
    refuse("predict", "/dev/zero")


def test_an_unreadable_file(refuse: Refuse, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tiny_onnx(), place / "closed.onnx")
    path.chmod(0)
    if os.access(path, os.R_OK):  # root reads everything
        really_open = Path.open

        def denied(self: Path, *args: Any, **kwargs: Any) -> Any:
            if self.name == path.name:
                raise PermissionError(13, "Permission denied")
            return really_open(self, *args, **kwargs)

        monkeypatch.setattr(Path, "open", denied)
    assert "Permission denied" in refuse("predict", path)


@pytest.mark.parametrize("suffix", [".onnx", ".pt", ".pth", ".pt2", ".bin", ".pkl", ".ckpt", ".json", ""])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_is_never_opened(refuse: Refuse, place: Path, suffix: str, protocol: int) -> None:
    if suffix == ".json":
        pytest.importorskip("transformers")
    path = place / f"model{suffix}"
    path.write_bytes(pickle.dumps(Payload(), protocol=protocol))
    refuse("predict", path)
    refuse("predict", path, "--trust")


def zipped(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize("suffix", [".onnx", ".pt", ".pt2", ".bin", ".zip"])
def test_a_torch_save_archive_is_never_opened(refuse: Refuse, place: Path, suffix: str) -> None:
    payload = pickle.dumps(Payload(), protocol=2)
    path = zipped(
        place / f"model{suffix}",
        {"archive/data.pkl": payload, "archive/version": b"3\n", "archive/byteorder": b"little"},
    )
    assert "pickle" in refuse("predict", path)
    refuse("predict", zipped(path, {"anything": payload}))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"schema_version": 8}',
        b'{"schema_version": {"major": 8}}',
        b"[" * 100_000,
        b'{"schema_version": {"major": ' + b"9" * 5000 + b"}}",
        b'{"schema_version": {"major": 7}}',
        b"\xff\xfe",
        b'{"schema_version": {"major": 8}, "graph_module": {"graph": {"nodes": 3, "tensor_values": []}, '
        b'"signature": {"input_specs": [{}]}}}',
    ],
)
def test_malformed_json_in_a_pt2(refuse: Refuse, place: Path, text: bytes) -> None:
    refuse("predict", zipped(place / "model.pt2", {"model/models/model.json": text}))


def test_a_zip_bomb(refuse: Refuse, place: Path) -> None:
    zeros = b" " * 2**26
    path = zipped(place / "bomb.pt2", {"model/models/model.json": zeros}, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 2**18
    assert "unpacks" in refuse("predict", path)
    path = zipped(
        place / "bomb.pt", {"m/code/a.py": zeros, "m/constants.pkl": b"", "m/data.pkl": b""}, zipfile.ZIP_DEFLATED
    )
    assert "unpacks" in refuse("predict", path, "--input", "4")


def test_a_member_that_lies_about_its_size(refuse: Refuse, place: Path) -> None:
    path = zipped(place / "model.pt2", {"model/models/model.json": b" " * 2**20}, zipfile.ZIP_DEFLATED)
    content = bytearray(path.read_bytes())
    at = content.rindex(b"PK\x01\x02") + 24
    content[at : at + 4] = (100).to_bytes(4, "little")
    path.write_bytes(content)
    refuse("predict", path)


def test_a_python_file_is_not_run_without_trust(refuse: Refuse, place: Path) -> None:
    (place / "net.py").write_text("open('PWNED', 'w').close()\ndef build(): ...\n")
    assert "--trust" in refuse("predict", "net.py:build")
    assert "no file" in refuse("predict", "absent.py:build", "--trust")


def test_as_a_process(place: Path) -> None:
    (place / "noise.onnx").write_bytes(random.Random(1).randbytes(1000))
    (place / "evil.pt").write_bytes(pickle.dumps(Payload()))
    (place / "net.py").write_text("open('PWNED', 'w').close()\n")
    cycle = [helper.make_node("Add", ["x", "b"], ["a"]), relu("a", "b")]
    save(model_of(cycle, [tensor("x", 1, 4)], [tensor("b", 1, 4)]), place / "cycle.onnx")
    save(tiny_onnx(), place / "tiny.onnx")
    before = files_below(place)
    cases = [["noise.onnx"], ["evil.pt"], ["net.py:build"], ["cycle.onnx"]]
    for case in cases:
        ended = subprocess.run(
            [sys.executable, "-m", "foretell.cli", "predict", *case],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (ended.returncode, ended.stdout) == (2, ""), ended.stderr
        assert ended.stderr.count("\n") == 1, ended.stderr
        assert ended.stderr.startswith("foretell: ")
    assert files_below(place) == before


def test_output_that_cannot_be_encoded(place: Path) -> None:
    save(tiny_onnx(), place / "tiny.onnx")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = subprocess.run(
        [sys.executable, "-m", "foretell.cli", "inspect", "tiny.onnx"],
        capture_output=True,
        env=environment,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert io.BytesIO(ended.stdout).read().isascii()
