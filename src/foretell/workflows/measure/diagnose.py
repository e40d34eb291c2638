"""Workflows: find out what is installed, which front-ends work, and whether there is a GPU."""

import importlib.util
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from foretell.devices import find_device
from foretell.errors import DeviceError, MeasurementError
from foretell.frontends.cache import cache_folder
from foretell.frontends.converted.environments import find_environment
from foretell.optional import available
from foretell.profiling.trackers.ncu import find_ncu

LIBRARIES = (
    "numpy", "onnx", "onnxruntime", "rich", "click", "torch", "torchvision", "timm", "transformers", "onnxscript",
    "pyarrow", "duckdb", "psycopg", "ray",
)  # fmt: skip
NEEDS = {
    "ONNX": ((), ""),
    "exported programs (.pt2)": ((), ""),
    "PyTorch modules, net.py:build, TorchScript": (("torch",), "torch"),
    "timm:NAME": (("torch", "timm"), "vision"),
    "torchvision:NAME": (("torch", "torchvision"), "vision"),
    "hf:ID, config.json": (("torch", "transformers"), "hf"),
}
CONVERTED = {
    "Keras (.keras, .h5), TensorFlow (saved_model/, .pb)": "keras",
    "PaddlePaddle (.json, .pdmodel)": "paddle",
    "JAX and Flax functions": "jax",
}
MEASURING = {
    "foretell profile on cpu": (("torch",), "profile"),
    "foretell profile --runtime onnxruntime": (("torch", "onnxruntime", "onnxscript"), "profile"),
    "--store FOLDER, foretell data": (("pyarrow", "duckdb"), "data"),
    "--store postgresql://…": (("pyarrow", "duckdb", "psycopg"), "postgres"),
    "foretell collect --ray": (("torch", "ray"), "ray"),
    "--energy (NVML)": (("pynvml",), "profile"),
}


@dataclass(frozen=True)
class Diagnosis:
    """What is installed on this machine, and what works."""

    foretell: str
    python: str
    platform: str
    libraries: dict[str, str | None]
    frontends: dict[str, str | None]  # None if it works, else what to do
    measuring: dict[str, str | None]  # the same
    gpus: tuple[str, ...]
    known_gpus: tuple[str, ...]
    cache: str
    cache_entries: int
    notes: tuple[str, ...] = ()  # what will not work although everything is installed


def diagnose() -> Diagnosis:
    """Examine this machine, without importing heavy libraries."""
    gpus = _gpus()
    folder = cache_folder() / "graphs"
    return Diagnosis(
        foretell=_version("foretell") or "not installed",
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        libraries={name: _version(name) if available(name) else None for name in LIBRARIES},
        frontends={name: _missing(needs, extra) for name, (needs, extra) in NEEDS.items()} | _converters(),
        measuring=_measuring(bool(gpus)),
        gpus=gpus,
        known_gpus=tuple(_device_id(name) for name in gpus),
        cache=str(folder),
        cache_entries=sum(1 for _ in folder.glob("*.fgraph")) if folder.is_dir() else 0,
        notes=_mixed_builds(),
    )


def _mixed_builds() -> tuple[str, ...]:
    """Say that torch and torchvision were built for different things, because then ``import timm`` fails.

    Their versions are read as text: importing torch takes seconds.
    """
    built = {name: _build(name) for name in ("torch", "torchvision")}
    if not all(built.values()) or len(set(built.values())) == 1:
        return ()
    said = " and ".join(f"{name} is built for {build}" for name, build in built.items())
    return (
        f"{said}: import torchvision and import timm fail in your own code (operator torchvision::nms does not exist). "
        "foretell repairs this for itself, also in net.py:build. To mend it, install both for the same: "
        f"torchvision {_version('torchvision')}+{built['torch']} from PyTorch's own package index.",
    )


def _build(name: str) -> str | None:
    """What a library was built for (cpu, cu130), as its version says; None if it does not."""
    spec = importlib.util.find_spec(name) if available(name) else None
    try:
        text = (Path(spec.origin).parent / "version.py").read_text() if spec and spec.origin else ""
    except OSError:
        return None
    found = re.search(r"__version__ = '[^'+]+\+(\w+)'", text)
    return found[1] if found else None


def _converters() -> dict[str, str | None]:
    """Which of the frameworks that convert models are installed."""
    return {
        shown: None if find_environment(name) else f"foretell frontends install {name}"
        for shown, name in CONVERTED.items()
    }


def _measuring(gpu: bool) -> dict[str, str | None]:
    checks = {name: _missing(needs, extra) for name, (needs, extra) in MEASURING.items()}
    checks["foretell profile on cuda"] = checks["foretell profile on cpu"] if gpu else "there is no NVIDIA GPU"
    checks["--occupancy (ncu)"] = None if _has_ncu() else "not found; it is part of NVIDIA Nsight Compute"
    service = shutil.which("nvidia-cuda-mps-control")
    checks["--slice (nvidia-cuda-mps-control)"] = None if service else "not found; it is part of NVIDIA's driver"
    return checks


def _has_ncu() -> bool:
    try:
        return bool(find_ncu())
    except MeasurementError:
        return False


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "present" if name in sys.modules else None


def _missing(needs: tuple[str, ...], extra: str) -> str | None:
    absent = [name for name in needs if not available(name)]
    return f"pip install 'foretell[{extra}]'" if absent else None


def _gpus() -> tuple[str, ...]:
    """The names of the NVIDIA GPUs, from nvidia-smi."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    try:
        shown = subprocess.run(
            [tool, "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(line.strip() for line in shown.stdout.splitlines() if line.strip()) if shown.returncode == 0 else ()


def _device_id(name: str) -> str:
    try:
        return find_device(name).id
    except DeviceError:
        return "not in the catalogue"
