"""Small ONNX models and a CSV file of measurements of them; the user's folder is a temporary one."""

from pathlib import Path

import pytest

from foretell.testing import tiny_onnx

HEADER = "model,batch_size,input,dtype,mode,latency_ms"
SIZES = (16, 24, 32, 48, 64, 96)


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "user"
    monkeypatch.setenv("FORETELL_CACHE", str(folder))
    return folder


@pytest.fixture
def models(tmp_path: Path) -> list[Path]:
    onnx = pytest.importorskip("onnx")
    paths = []
    for size in SIZES:
        paths.append(tmp_path / f"net{size}.onnx")
        onnx.save(tiny_onnx(size=size), paths[-1])
    return paths


@pytest.fixture
def table(models: list[Path], tmp_path: Path) -> Path:
    """All models on a device that is twice as slow as the roofline of a P4 says."""
    import foretell

    lines = [HEADER]
    for path in models:
        told = foretell.predict(path, device="p4", batch_size=64).latency_ms
        lines.append(f"{path},64,,fp32,inference,{told.value * 2:.6f}")
    file = tmp_path / "measured.csv"
    file.write_text("\n".join(lines) + "\n")
    return file
