import dataclasses
import subprocess
import sys
import tomllib
from importlib.resources import files

import pytest

from foretell.devices import all_devices, cite, find_device
from foretell.errors import DeviceError

RAW = tomllib.loads(files("foretell.devices").joinpath("catalog.toml").read_text(encoding="utf-8"))
DEVICES = all_devices()
GPUS = [device for device in DEVICES if device.is_nvidia]
OTHERS = [device for device in DEVICES if not device.is_cpu and not device.is_nvidia]
# Names under which we find a device are ours, not facts about it.
NAMES = {"aliases", "price_keys", "sources"}

# FP32 lanes, and dense FP16 operations with FP32 accumulation, per clock and SM.
CORES = {"6.0": 64, "7.0": 64, "7.5": 64, "8.0": 64, "gfx90a": 64}
FP16_OPS = {
    "8.0": 2048, "8.7": 2048, "9.0": 4096, "10.0": 8192, "10.3": 8192, "11.0": 8192,
    "gfx90a": 1024, "gfx942": 2048, "gfx950": 4096, "pvc": 4096, "bmg-g21": 2048,
}  # fmt: skip
# cards that accumulate in FP32 at half rate, as all GeForce cards do
HALF_RATE = {"a10g", "l40", "l20"}
# cards that print their tensor rate at a much lower clock, or have it cut
SLOWER = {"h100-nvl": 0.865, "h200-nvl": 0.865, "h20": 0.234}


@pytest.mark.parametrize("name", RAW["device"])
def test_every_field_has_a_source_and_every_source_a_citation(name):
    row = RAW["device"][name]
    cited = [field for fields in row["sources"].values() for field in fields]
    assert len(cited) == len(set(cited)), "a field is claimed by two sources"
    assert set(row) - NAMES == {field for field in cited if "." not in field}
    for field in cited:
        value = row
        for part in field.split("."):
            value = value[part]
    assert set(row["sources"]) <= set(RAW["sources"])


def test_every_citation_is_used_and_says_something():
    used = {key for row in RAW["device"].values() for key in row["sources"]}
    used |= {row["source"] for row in RAW["sm_limits"].values()}
    assert used == set(RAW["sources"])
    assert all(len(text) > 15 for text in RAW["sources"].values())


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.id)
def test_every_fact_of_a_record_can_be_cited(device):
    ours = {"id", "aliases", "price_keys", "sources"}
    for field in dataclasses.fields(device):
        if field.name not in ours and getattr(device, field.name) not in (None, ()):
            assert cite(device, field.name)


def test_citing_an_unknown_field_lists_the_known_ones():
    with pytest.raises(DeviceError, match=r"'colour' of h200 has no source. Fields with one: architecture, "):
        cite(find_device("h200"), "colour")


@pytest.mark.parametrize("device", GPUS, ids=lambda device: device.id)
def test_fp32_is_two_operations_per_core_and_clock(device):
    computed = 2 * CORES.get(device.compute_capability, 128) * device.sms * device.boost_clock_mhz / 1e6
    assert device.vector_tflops["fp32"] == pytest.approx(computed, rel=0.04)


@pytest.mark.parametrize("device", [d for d in GPUS if d.has_tensor_cores], ids=lambda device: device.id)
def test_tensor_peaks_are_dense_and_accumulate_in_fp32(device):
    half = device.id in HALF_RATE or "GeForce" in device.name
    ops = (512 if half else FP16_OPS.get(device.compute_capability, 1024)) * SLOWER.get(device.id, 1)
    computed = ops * device.sms * device.boost_clock_mhz / 1e6
    # Hopper and Blackwell print their peaks at a tensor clock up to 8 % under the boost clock.
    assert 0.92 * computed < device.tensor_tflops["fp16"] < 1.02 * computed
    assert device.tensor_tflops.get("bf16", device.tensor_tflops["fp16"]) == device.tensor_tflops["fp16"]
    if "tf32" in device.tensor_tflops:
        assert device.tensor_tflops["fp16"] / device.tensor_tflops["tf32"] == pytest.approx(2, rel=0.02)


@pytest.mark.parametrize("device", OTHERS, ids=lambda device: device.id)
def test_peaks_of_other_makers_are_those_of_their_units_and_clock(device):
    cycles = device.sms * device.boost_clock_mhz / 1e6
    assert device.vector_tflops["fp32"] == pytest.approx(
        2 * CORES.get(device.compute_capability, 128) * cycles, rel=0.04
    )
    if device.has_tensor_cores:
        assert device.tensor_tflops["fp16"] == pytest.approx(FP16_OPS[device.compute_capability] * cycles, rel=0.02)
    assert device.limits is None
    assert not device.mig_profiles


@pytest.mark.parametrize("device", GPUS, ids=lambda device: device.id)
def test_numbers_are_physical(device):
    if device.memory_mib is not None:
        assert device.memory_gib <= device.memory_mib / 1024 * 1.001
        assert device.memory_gib > 0.9 * device.memory_mib / 1024
    assert device.idle_power_w is None or 0 < device.idle_power_w < 0.25 * device.tdp_w
    assert device.base_clock_mhz is None or device.base_clock_mhz < device.boost_clock_mhz
    assert device.limits.max_threads == 32 * device.limits.max_warps
    if device.pcie_generation is not None:
        assert device.pcie_gb_per_s / (4 * 2**device.pcie_generation) in (0.5, 1)  # 8 or 16 lanes
    assert 100 < device.bandwidth_gb_per_s < 10_000
    assert device.launch_overhead_us > 0


def test_a_table_by_itself_is_what_it_is_in_the_whole_file():
    assert [device.id for device in DEVICES] == list(RAW["device"])
    for device in DEVICES:
        row = RAW["device"][device.id]
        assert all(
            getattr(device, field) == value
            for field, value in row.items()
            if hasattr(device, field) and field not in {"aliases", "price_keys", "sources"}
        )
        assert (list(device.aliases), list(device.price_keys)) == (row.get("aliases", []), row.get("price_keys", []))
        assert [profile.name for profile in device.mig_profiles] == [profile["name"] for profile in row.get("mig", ())]


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("l4", "bandwidth_gb_per_s", 300),
        ("l4", "sms", 58),
        ("a100-pcie-40gb", "bandwidth_gb_per_s", 1555),
        ("a100-pcie-80gb", "bandwidth_gb_per_s", 1935),
        ("h200", "sms", 132),
        ("h200", "memory_mib", 143771),
        ("p4", "sms", 20),
        ("l40s", "nvlink_gb_per_s", None),
        ("cpu", "limits", None),
    ],
)
def test_known_traps_of_public_tables(name, field, value):
    assert getattr(find_device(name), field) == value


def test_h100_bf16_is_the_dense_figure():
    assert find_device("h100").peak_tflops("bf16", tensor_cores=True) == pytest.approx(989, abs=1)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("H200", "h200"),
        ("h200_sxm", "h200"),
        ("NVIDIA H200", "h200"),
        ("h100", "h100-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("a100", "a100-sxm-40gb"),
        ("A100_SXM_40GB", "a100-sxm-40gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"),
        ("a100-sxm-80gb", "a100-sxm-80gb"),
        ("A100-80GB", "a100-sxm-80gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("NVIDIA A10G", "a10g"),
        ("Tesla T4", "t4"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("GeForce RTX 3090", "rtx-3090"),
        ("4090", "rtx-4090"),
        ("rtx4090", "rtx-4090"),
        ("RTX 5090", "rtx-5090"),
        ("2080ti", "rtx-2080-ti"),
        ("v100", "v100-sxm2-16gb"),
        ("Tesla V100-SXM2-16GB", "v100-sxm2-16gb"),
        ("V100-32GB", "v100-sxm2-32gb"),
        ("v100-pcie", "v100-pcie-16gb"),
        ("Tesla V100-PCIE-32GB", "v100-pcie-32gb"),
        ("Tesla P100-PCIE-16GB", "p100"),
        ("tesla_p4", "p4"),
        ("b200-sxm", "b200"),
        ("RTX A6000", "rtx-a6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("Quadro RTX 6000", "quadro-rtx-6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-server"),
        ("rtx pro 6000", "rtx-pro-6000"),
        ("RTX 4070 Ti SUPER", "rtx-4070-ti-super"),
        ("NVIDIA GeForce RTX 5060 Ti", "rtx-5060-ti-16gb"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("gh200", "gh200-96gb"),
        ("DGX Spark", "gb10"),
        ("AMD Instinct MI300X", "mi300x"),
        ("Apple M4 Max", "apple-m4-max"),
        ("generic-cpu", "cpu"),
        (" CPU ", "cpu"),
    ],
)
def test_names_as_people_write_them(written, meant):
    assert find_device(written).id == meant


def test_every_id_name_and_alias_finds_its_device():
    for device in DEVICES:
        for name in (device.id, device.name, *device.aliases):
            assert find_device(name) is device


def test_no_price_key_belongs_to_two_devices():
    keys = [key for device in DEVICES for key in device.price_keys]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("a10o", " Did you mean 'a100-sxm-40gb'?"),
        ("rtx 409", " Did you mean 'rtx-4090'?"),
        ("h2000", " Did you mean 'h200'?"),
        ("rtx 5070it", " Did you mean 'rtx-5070-ti'?"),
        ("MI3OOX", " Did you mean 'mi300x'?"),
        ("rtx6000", " Did you mean one of 'rtx-pro-6000', 'rtx-6000-ada', 'quadro-rtx-6000'?"),
        ("quantum", ""),
        ("", ""),
        ("---", ""),
        ("NVIDIA", ""),
        ("a\nb", ""),
    ],
)
def test_an_unknown_name_is_one_line_with_the_closest(written, hint):
    with pytest.raises(DeviceError) as caught:
        find_device(written)
    assert str(caught.value) == f"Unknown device {written!r}.{hint} See: foretell devices"


@pytest.mark.parametrize("written", ["cuda:0", "cuda", "CUDA1", "gpu:3", "mps", "xpu:0"])
def test_a_gpu_of_some_machine_is_told_what_to_give_instead(written):
    with pytest.raises(DeviceError, match=r"give its name, .* or describe it: foretell devices new -o my-gpu.toml"):
        find_device(written)


def test_importing_the_room_loads_nothing_heavy():
    loaded = "print({'torch', 'onnx', 'numpy'} & set(sys.modules))"
    code = f"import sys; from foretell.devices import all_devices; all_devices(); {loaded}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
