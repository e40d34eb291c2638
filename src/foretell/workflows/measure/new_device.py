"""Workflows: write a device file for the GPU or CPU of this machine: what can be read is filled in.

A GPU of the catalogue becomes a file of a few lines: ``like`` and what nvidia-smi says otherwise, such as a lower power
limit. Of another GPU, and of a CPU, the driver and ``/proc/cpuinfo`` give sizes and clocks, and ``foretell
characterise``, if it was run, the rates that it reached. What nobody can read is left as a comment to fill in.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from foretell.devices import Device, find_device
from foretell.devices.catalog import is_in_catalog
from foretell.devices.ceilings import Ceilings
from foretell.errors import DataError, DeviceError, InputError
from foretell.files import write_whole
from foretell.units import KIB, bytes_from_mib, gib, mib
from foretell.workflows.measure.characterise import device_id_of, read_own_ceilings

_QUERIES = ("name", "memory.total", "power.limit", "clocks.max.sm", "compute_cap", "pcie.link.gen.max")
_CPU_INFO = Path("/proc/cpuinfo")
_MEMORY_INFO = Path("/proc/meminfo")
_SAME_POWER = 0.02  # nvidia-smi rounds, and boards differ a little
_SAME_MEMORY = 0.1  # a driver keeps some of it
_USUAL_CPU_W = 65.0
_ASK = {
    "sms": "multiprocessors of the product, from its datasheet",
    "tensor_tflops": "{ tf32 = …, fp16 = …, bf16 = … }  dense, with FP32 accumulation, from its datasheet",
    "vector_tflops": "{ fp32 = …, fp16 = … }  without tensor cores, in TFLOP/s",
    "bandwidth_gb_per_s": "of its memory, from its datasheet",
    "l2_mib": "its L2 cache",
}

_RUN = "run foretell characterise, then this command again"


@dataclass(frozen=True)
class NewDevice:
    """A device file: its text, and the facts that are missing in it."""

    text: str
    missing: tuple[str, ...]


def describe_machine(kind: str | None = None) -> NewDevice:
    """The device file of this machine's ``cuda`` or ``cpu``; without a kind, of its first GPU if it has one."""
    if kind not in (None, "cuda", "cpu"):
        raise InputError(f"Unknown kind of device {kind!r}: give cuda or cpu.")
    gpu = None if kind == "cpu" else _read_gpu()
    if gpu is not None:
        return describe_gpu(gpu, _own_ceilings(device_id_of(str(gpu["name"]))))
    if kind == "cuda":
        raise DeviceError("nvidia-smi shows no GPU here. Describe one by hand: docs/devices.md, or use --kind cpu.")
    return describe_cpu(_text(_CPU_INFO), _text(_MEMORY_INFO), _own_ceilings("cpu"))


def write_device(path: Path, new: NewDevice) -> None:
    """Write the file; never over another one."""
    if path.suffix != ".toml" or is_in_catalog(path.stem):
        raise InputError(f"{path}: a device file ends in .toml, and is not called as a device of the catalogue.")
    if path.exists():
        raise InputError(f"{path} exists; remove it, or write to another file.")
    try:
        write_whole(path, new.text.encode())
    except OSError as error:
        raise DataError(f"Cannot write {path}: {error.strerror}.") from error


def describe_gpu(gpu: Mapping[str, object], ceilings: Ceilings | None = None) -> NewDevice:
    """The file of a GPU as nvidia-smi shows it."""
    name = str(gpu["name"])
    if is_in_catalog(name):
        known = find_device(name)
        return NewDevice(_head(name) + f'like = "{known.id}"\n' + "".join(_differences(gpu, known)), ())
    facts: dict[str, object] = {"name": name, "vendor": "NVIDIA"}
    facts |= {key: value for key, value in gpu.items() if key != "name" and value is not None}
    facts |= _reached(ceilings, "cuda")
    return _file(name, facts, tuple(key for key in _ASK if key not in facts))


def describe_cpu(cpu_info: str, memory_info: str, ceilings: Ceilings | None = None) -> NewDevice:
    """The file of a CPU as Linux shows it."""
    name = _field(cpu_info, "model name") or "CPU"
    cores = len(set(re.findall(r"^core id\s*:\s*(\d+)", cpu_info, re.MULTILINE))) or os.cpu_count() or 1
    facts: dict[str, object] = {"name": name, "vendor": "generic", "architecture": "x86-64", "sms": cores}
    clock, cache = _field(cpu_info, "cpu MHz"), _field(cpu_info, "cache size")
    memory = _field(memory_info, "MemTotal")
    if clock:
        facts |= {"base_clock_mhz": round(float(clock)), "boost_clock_mhz": round(float(clock))}
    if cache and cache.split()[0].isdigit():
        facts["l2_mib"] = mib(KIB * int(cache.split()[0]))
    if memory and memory.split()[0].isdigit():
        facts["memory_gib"] = round(gib(KIB * int(memory.split()[0])), 2)
    facts |= {"tdp_w": _USUAL_CPU_W, "launch_overhead_us": 1.0} | _reached(ceilings, "cpu")
    needed = ("vector_tflops", "bandwidth_gb_per_s", "memory_gib")
    return _file(name, facts, tuple(key for key in needed if key not in facts), {})


def _file(name: str, facts: Mapping[str, object], missing: tuple[str, ...], ask: Mapping[str, str] = _ASK) -> NewDevice:
    lines = [f"{key} = {_written(value)}\n" for key, value in facts.items()]
    lines += [f"# {key} =   # fill in: {ask.get(key, _RUN)}\n" for key in missing]
    return NewDevice(_head(name) + "".join(lines), missing)


def _head(name: str) -> str:
    return f"# {' '.join(name.split())}, as this machine shows it. What the fields mean: docs/devices.md\n"


def _differences(gpu: Mapping[str, object], known: Device) -> list[str]:
    """What nvidia-smi says otherwise than the catalogue."""
    lines = []
    power, memory = gpu.get("tdp_w"), gpu.get("memory_gib")
    if isinstance(power, float) and abs(power / known.tdp_w - 1) > _SAME_POWER:
        lines.append(f"tdp_w = {power:g}  # its power limit; the catalogue has {known.tdp_w:g}\n")
    # drivers give cards of two sizes one name, such as GeForce RTX 4060 Ti
    if isinstance(memory, float) and abs(memory / known.memory_gib - 1) > _SAME_MEMORY:
        lines.append(f"memory_gib = {memory:g}  # the catalogue has {known.memory_gib:g}\n")
        lines.append(f"memory_mib = {gpu['memory_mib']}\n")
    return lines


def _reached(ceilings: Ceilings | None, kind: str) -> dict[str, object]:
    """Rates that were measured: less than the peaks of a datasheet, and what programs can have."""
    if ceilings is None:
        return {}
    facts: dict[str, object] = {}
    if ceilings.dram_gb_per_s is not None:
        facts["bandwidth_gb_per_s"] = round(ceilings.dram_gb_per_s, 1)
    rates = {name: float(f"{rate:.4g}") for name, rate in ceilings.tflops.items()}
    vector = rates if kind == "cpu" else {name: rates[name] for name in ("fp64", "fp32") if name in rates}
    if "fp32" in vector:
        plain = {name: float(f"{rate:.4g}") for name, rate in ceilings.plain_tflops.items()}
        facts["vector_tflops"] = vector | plain
    tensor = {name: rate for name, rate in rates.items() if name not in vector}
    return facts | ({"tensor_tflops": tensor} if tensor else {})


def _written(value: object) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {one:g}" for key, one in value.items()) + " }"
    if isinstance(value, str):
        return '"' + "".join(c for c in value if c.isprintable() and c not in '"\\') + '"'
    return f"{value:g}" if isinstance(value, float) else str(value)


def _read_gpu() -> dict[str, object] | None:
    """The first GPU as nvidia-smi shows it; None without one."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    command = [tool, f"--query-gpu={','.join(_QUERIES)}", "--format=csv,noheader,nounits"]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_gpu(shown.stdout) if shown.returncode == 0 else None


def parse_gpu(text: str) -> dict[str, object] | None:
    """The first line that nvidia-smi prints.

    >>> parse_gpu("NVIDIA RTX 6000, 49140, 300.00, 3105, 8.9, 4\\n")["memory_gib"]
    47.99
    """
    line = next((line for line in text.splitlines() if line.count(",") == len(_QUERIES) - 1), None)
    if line is None:
        return None
    name, *rest = (part.strip() for part in line.split(","))
    memory, power, clock, capability, link = (part if re.fullmatch(r"[0-9.]+", part) else None for part in rest)
    return {
        "name": name,
        "compute_capability": capability,
        "boost_clock_mhz": float(clock) if clock else None,
        "memory_mib": int(memory) if memory else None,
        "memory_gib": round(gib(bytes_from_mib(int(memory))), 2) if memory else None,
        "tdp_w": float(power) if power else None,
        "pcie_generation": int(link) if link else None,
    }


def _own_ceilings(device: str) -> Ceilings | None:
    return read_own_ceilings().get(device)


def _field(text: str, name: str) -> str | None:
    found = re.search(rf"^{name}\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux: nothing can be read
        return ""
