"""What ``foretell doctor`` finds out."""

import importlib

import pytest

from foretell.workflows.measure.diagnose import diagnose

module = importlib.import_module("foretell.workflows.measure.diagnose")


def test_every_way_to_measure_and_keep_has_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "available", lambda name: name not in ("duckdb", "psycopg", "ray", "pynvml"))
    monkeypatch.setattr(module.shutil, "which", lambda name: "/bin/ncu" if name == "ncu" else None)
    diagnosis = diagnose()
    remedies = diagnosis.measuring
    assert remedies["foretell profile on cpu"] is None
    assert remedies["--occupancy (ncu)"] is None
    for way, words in (
        ("--store FOLDER, foretell data", "foretell[data]"),
        ("--store postgresql://…", "foretell[postgres]"),
        ("foretell collect --ray", "foretell[ray]"),
        ("--energy (NVML)", "foretell[profile]"),
        ("--slice (nvidia-cuda-mps-control)", "not found"),
        ("foretell profile on cuda", "no NVIDIA GPU"),
    ):
        assert words in (remedies[way] or ""), way
    assert {"duckdb", "psycopg", "ray", "onnxscript"} <= set(diagnosis.libraries)
