"""What ``foretell doctor`` finds out."""

import importlib
import importlib.machinery
from pathlib import Path

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


def _library(folder: Path, name: str, version: str) -> None:
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text("")
    (folder / name / "version.py").write_text(f"__version__ = '{version}'\n")


@pytest.mark.parametrize(
    ("torch", "vision", "said"), [("2.13.0+cpu", "0.28.0+cu130", True), ("2.13.0+cu130", "0.28.0+cu130", False),
                                  ("2.13.0", "0.28.0", False)],
)  # fmt: skip
def test_builds_that_do_not_fit_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch: str, vision: str, said: bool
) -> None:
    """``import timm`` fails then, though both libraries are installed."""
    _library(tmp_path, "torch", torch)
    _library(tmp_path, "torchvision", vision)
    monkeypatch.setattr(
        module.importlib.util, "find_spec",
        lambda name: importlib.machinery.ModuleSpec(name, None, origin=str(tmp_path / name / "__init__.py")),
    )  # fmt: skip
    notes = module._mixed_builds()
    assert bool(notes) is said
    if said:
        assert "torch is built for cpu and torchvision is built for cu130" in notes[0]
        assert "import timm" in notes[0]
