"""Profiling: the environment of a campaign: host, device, driver, libraries, and a hash of the measuring code."""

import hashlib
import importlib.metadata
import platform
from datetime import UTC, datetime
from pathlib import Path

from foretell.errors import ForetellError
from foretell.profiling.trackers.nvml import Nvml

# PyTorch's defaults, which measurements rely on: cuDNN chooses kernels by its rules and does not try them out, and
# convolutions and recurrent layers of fp32 run in TF32
CUDNN_BENCHMARK, CUDNN_TF32 = False, True
_LIBRARIES = ("torch", "timm", "torchvision", "transformers", "onnxruntime", "numpy", "foretell")


def code_version(commit: str = "") -> str:
    """A hash of the code that measures, after the commit if one is given."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return f"{commit or 'unknown'}+{digest.hexdigest()[:12]}"


def describe(device: str, commit: str = "") -> dict[str, object]:
    """The facts that stay the same during a campaign."""
    facts: dict[str, object] = {
        "host": platform.node(),
        "host_cpu": _cpu_name(),
        "python": platform.python_version(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "code_version": code_version(commit),
        "libraries": {name: version for name in _LIBRARIES if (version := _version(name)) is not None},
    }
    if device == "cpu":
        return facts | {"device_name": "cpu", "driver": ""}
    facts |= {"cudnn_benchmark": CUDNN_BENCHMARK, "cudnn_tf32": CUDNN_TF32}
    nvml = Nvml()
    try:
        nvml.open()
    except ForetellError:
        return facts | {"device_name": "cuda", "driver": ""}
    return facts | nvml.facts()


def _version(library: str) -> str | None:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
