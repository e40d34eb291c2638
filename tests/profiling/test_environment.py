import hashlib
import platform
from datetime import datetime
from pathlib import Path

from foretell.errors import MeasurementError
from foretell.profiling import environment


def test_code_version_names_the_commit_and_changes_with_the_code(tmp_path, monkeypatch):
    (tmp_path / "b.py").write_bytes(b"two")
    (tmp_path / "a.py").write_bytes(b"one")
    (tmp_path / "notes.txt").write_bytes(b"measures nothing")
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "a.py"))
    before = environment.code_version("abc123")
    assert before == "abc123+" + hashlib.sha256(b"onetwo").hexdigest()[:12]
    (tmp_path / "b.py").write_bytes(b"three")
    assert environment.code_version("abc123") != before
    assert environment.code_version().startswith("unknown+")


def test_a_host_is_described_without_a_driver_and_without_absent_libraries(monkeypatch):
    monkeypatch.setattr(environment, "_LIBRARIES", ("pytest", "no-such-library"))
    facts = environment.describe("cpu", "abc123")
    assert (facts["device_name"], facts["driver"]) == ("cpu", "")
    assert set(facts["libraries"]) == {"pytest"}
    assert facts["code_version"] == environment.code_version("abc123")
    assert datetime.fromisoformat(facts["date"]).utcoffset().total_seconds() == 0


def test_a_gpu_whose_driver_does_not_answer_is_still_described(monkeypatch):
    class Absent:
        def open(self):
            raise MeasurementError("There is no driver.")

    class Present:
        def open(self):
            return None

        def facts(self):
            return {"device_name": "NVIDIA H200", "driver": "570.1"}

    monkeypatch.setattr(environment, "Nvml", Absent)
    facts = environment.describe("cuda")
    assert (facts["device_name"], facts["driver"]) == ("cuda", "")
    monkeypatch.setattr(environment, "Nvml", Present)
    facts = environment.describe("cuda")
    assert (facts["device_name"], facts["driver"]) == ("NVIDIA H200", "570.1")


def test_the_processor_is_named_by_the_first_model_name(monkeypatch):
    text = "processor : 0\nmodel name\t: Fast: 3 GHz\nmodel name\t: Slow\n"
    monkeypatch.setattr(Path, "read_text", lambda self, encoding: text)
    assert environment.describe("cpu")["host_cpu"] == "Fast: 3 GHz"
    monkeypatch.setattr(Path, "read_text", lambda self, encoding: "processor : 0\n")
    assert environment.describe("cpu")["host_cpu"] == platform.processor()
