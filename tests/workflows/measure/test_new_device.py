import subprocess
import tomllib

import pytest

from foretell.devices.ceilings import Ceilings
from foretell.devices.device_file import read_device
from foretell.errors import DeviceError, InputError
from foretell.workflows.measure import new_device
from foretell.workflows.measure.new_device import describe_cpu, describe_gpu, describe_machine, parse_gpu, write_device

CPU_INFO = """
processor\t: 0
model name\t: A "fine" CPU
cpu MHz\t\t: 2595.124
cache size\t: 1024 KB
core id\t\t: 0

processor\t: 1
core id\t\t: 1

processor\t: 2
core id\t\t: 1
"""
MEMORY_INFO = "MemTotal:       25165824 kB\nMemFree: 1 kB\n"
REACHED = Ceilings("cpu", "x", "2026-11-16", "a test", 20.04, None, {"fp32": 0.12345, "fp64": 0.06})


def test_a_gpu_of_the_catalogue_needs_no_more_than_its_name():
    new = describe_gpu(parse_gpu("NVIDIA H200, 143771, 700.00, 1980, 9.0, 5\n"))
    assert tomllib.loads(new.text) == {"like": "h200"}
    assert new.missing == ()


def test_a_lower_power_limit_is_written():
    new = describe_gpu(parse_gpu("NVIDIA GeForce RTX 4090, 24564, 320.00, 3105, 8.9, 4\n"))
    assert tomllib.loads(new.text) == {"like": "rtx-4090", "tdp_w": 320}


def test_a_card_with_more_memory_than_its_namesake_is_told_apart():
    new = describe_gpu(parse_gpu("NVIDIA GeForce RTX 4060 Ti, 16380, 160.00, 3105, 8.9, 4\n"))
    assert tomllib.loads(new.text) == {"like": "rtx-4060-ti", "memory_gib": 16.0, "memory_mib": 16380}


def test_what_nobody_can_read_of_another_gpu_is_asked_for(tmp_path):
    gpu = parse_gpu("NVIDIA RTX Example, 49140, 300.00, 3105, 8.9, [N/A]\n")
    new = describe_gpu(gpu)
    assert tomllib.loads(new.text) == {
        "name": "NVIDIA RTX Example", "vendor": "NVIDIA", "compute_capability": "8.9", "boost_clock_mhz": 3105,
        "memory_mib": 49140, "memory_gib": 47.99, "tdp_w": 300,
    }  # fmt: skip
    assert new.missing == ("sms", "tensor_tflops", "vector_tflops", "bandwidth_gb_per_s", "l2_mib")
    assert "# sms =   # fill in: multiprocessors" in new.text
    rates = {"fp32": 80.0, "fp16": 150.0}
    new = describe_gpu(gpu, Ceilings("x", "x", "2026-11-16", "a test", 850.0, None, rates))
    assert new.missing == ("sms", "l2_mib")
    write_device(tmp_path / "my.toml", new)
    with pytest.raises(DeviceError, match="sms is missing"):
        read_device(tmp_path / "my.toml")
    (tmp_path / "my.toml").write_text(new.text + "sms = 142\n")
    device = read_device(tmp_path / "my.toml")
    assert (device.vector_tflops, device.tensor_tflops) == ({"fp32": 80.0}, {"fp16": 150.0})
    assert device.bandwidth_gb_per_s == 850.0
    ceilings = Ceilings("x", "x", "2026-11-16", "a test", 850.0, None, rates, plain_tflops={"fp16": 141.5})
    assert tomllib.loads(describe_gpu(gpu, ceilings).text)["vector_tflops"] == {"fp32": 80.0, "fp16": 141.5}


def test_a_cpu_is_described_from_linux_and_its_ceilings(tmp_path):
    assert describe_cpu(CPU_INFO, MEMORY_INFO).missing == ("vector_tflops", "bandwidth_gb_per_s")
    assert "run foretell characterise" in describe_cpu(CPU_INFO, MEMORY_INFO).text
    new = describe_cpu(CPU_INFO, MEMORY_INFO, REACHED)
    assert new.missing == ()
    write_device(tmp_path / "my-cpu.toml", new)
    device = read_device(tmp_path / "my-cpu.toml")
    assert (device.is_cpu, device.name, device.sms, device.memory_gib) == (True, "A fine CPU", 2, 24.0)
    assert (device.l2_mib, device.boost_clock_mhz, device.bandwidth_gb_per_s) == (1.0, 2595.0, 20.0)
    assert device.vector_tflops == {"fp32": 0.1235, "fp64": 0.06}


def test_nothing_is_overwritten_or_called_as_the_catalogue(tmp_path):
    new = describe_cpu(CPU_INFO, MEMORY_INFO, REACHED)
    write_device(tmp_path / "my.toml", new)
    for name in ("my.toml", "h200.toml", "my.json"):
        with pytest.raises(InputError):
            write_device(tmp_path / name, new)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my.toml"]


def test_this_machine_is_asked_for_its_gpu_first(monkeypatch):
    monkeypatch.setattr(new_device.shutil, "which", lambda _: None)
    with pytest.raises(DeviceError, match="nvidia-smi shows no GPU"):
        describe_machine("cuda")
    with pytest.raises(InputError, match="Unknown kind"):
        describe_machine("gpu")
    assert 'vendor = "generic"' in describe_machine().text
    monkeypatch.setattr(new_device.shutil, "which", lambda _: "/bin/nvidia-smi")
    shown = subprocess.CompletedProcess([], 0, "NVIDIA H200, 143771, 700.00, 1980, 9.0, 5\nanother\n", "")
    monkeypatch.setattr(new_device.subprocess, "run", lambda *_, **__: shown)
    assert 'like = "h200"' in describe_machine().text
    assert 'vendor = "generic"' in describe_machine("cpu").text
    failed = subprocess.CompletedProcess([], 9, "No devices were found\n", "")
    monkeypatch.setattr(new_device.subprocess, "run", lambda *_, **__: failed)
    assert 'vendor = "generic"' in describe_machine().text
