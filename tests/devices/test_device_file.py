from dataclasses import replace

import pytest

from foretell.devices import cite, device_of, find_device, parse_slice
from foretell.devices.device_file import read_device
from foretell.errors import DeviceError
from foretell.predictors.choice import best_predictor

WHOLE = """
name = "NVIDIA Example"
compute_capability = "8.9"
sms = 100
boost_clock_mhz = 2500
tensor_tflops = { tf32 = 64.0, fp16 = 128.0, bf16 = 128.0 }
vector_tflops = { fp32 = 64.0 }
bandwidth_gb_per_s = 900
memory_gib = 23.5
tdp_w = 300
"""


def write(folder, text, name="my-gpu.toml"):
    path = folder / name
    path.write_text(text)
    return path


def test_a_file_describes_a_device(tmp_path):
    path = write(tmp_path, WHOLE)
    device = device_of(str(path))
    assert (device.id, device.name, device.vendor, device.sms) == ("my-gpu", "NVIDIA Example", "NVIDIA", 100)
    assert (device.bandwidth_gb_per_s, device.memory_gib, device.tdp_w) == (900.0, 23.5, 300.0)
    assert not device.is_cpu
    assert device.limits == find_device("rtx-4090").limits
    assert cite(device, "tdp_w") == str(path)
    # what is derived from a prediction asks for its device by name
    assert find_device("my-gpu") is device
    assert best_predictor("my-gpu") == "transfer"
    assert parse_slice("sms:50", device).sms == 50


def test_a_file_may_take_the_rest_from_the_catalogue(tmp_path):
    device = device_of(write(tmp_path, 'like = "rtx-4090"\ntdp_w = 300\n', "slow-4090.toml"))
    known = find_device("rtx-4090")
    assert (device.tdp_w, device.id, device.name) == (300.0, "slow-4090", f"{known.name} (slow-4090)")
    same = replace(device, id=known.id, name=known.name, tdp_w=known.tdp_w, rated_tdp_w=None, sources=known.sources)
    assert replace(same, aliases=known.aliases, price_keys=known.price_keys) == known
    assert cite(device, "sms").endswith("(of rtx-4090)")
    assert cite(device, "tdp_w").endswith("slow-4090.toml")
    assert cite(device, "rated_tdp_w") == cite(device, "sms").replace(cite(known, "sms"), cite(known, "tdp_w"))


def test_gpus_of_other_makers_and_those_without_a_clock_get_the_roofline(tmp_path):
    amd = WHOLE.replace('"8.9"', '"gfx942"') + 'vendor = "AMD"\n'
    assert device_of(write(tmp_path, amd, "my-amd.toml")).limits is None
    assert best_predictor("my-amd") == "roofline"
    assert not find_device("my-amd").is_cpu
    device_of(write(tmp_path, WHOLE.replace("boost_clock_mhz = 2500\n", ""), "no-clock.toml"))
    assert best_predictor("no-clock") == "roofline"


def test_a_file_without_a_compute_capability_is_a_cpu(tmp_path):
    text = (
        'name = "CPU"\nsms = 4\nvector_tflops = { fp32 = 0.3 }\nbandwidth_gb_per_s = 40\nmemory_gib = 32\ntdp_w = 65\n'
    )
    assert device_of(write(tmp_path, text, "my-cpu.toml")).is_cpu


@pytest.mark.parametrize("maker", ["AMD", "intel", "Apple", "NVIDIA"])
def test_a_gpu_without_a_compute_capability_is_not_taken_for_a_cpu(tmp_path, maker):
    plain = "\n".join(line for line in WHOLE.splitlines() if not line.startswith(("compute", "tensor")))
    with pytest.raises(DeviceError, match=r'such as "8.9", "gfx942" or "apple9"; a CPU has vendor = "generic"'):
        read_device(write(tmp_path, f'{plain}\nvendor = "{maker}"\n'))
    assert read_device(write(tmp_path, f'{plain}\nvendor = "generic"\n')).is_cpu


def test_a_device_object_of_the_users_is_found_by_its_name_and_never_hides_the_catalogue():
    own = replace(find_device("l4"), id="own-l4")
    assert device_of(own) is own
    assert find_device("own-l4") is own
    assert device_of(replace(find_device("l4"))) == find_device("l4")
    with pytest.raises(DeviceError, match=r"called 'l4', but its facts are not the catalogue's. Give it a name"):
        device_of(replace(find_device("l4"), tdp_w=40.0))
    assert find_device("l4").tdp_w == 72


def test_mig_profiles_can_be_given(tmp_path):
    part = (
        '[[mig]]\nname = "1g"\nsms = 20\nmemory_gib = 5.5\nbandwidth_eighths = 2\nl2_eighths = 2\nmax_instances = 4\n'
    )
    device = device_of(write(tmp_path, WHOLE + part, "with-mig.toml"))
    assert parse_slice("mig:1g", device).sms == 20
    with pytest.raises(DeviceError, match="MIG profile 1g is larger than the device"):
        read_device(write(tmp_path, WHOLE + part.replace("sms = 20", "sms = 200")))
    with pytest.raises(DeviceError, match="mig 1: l2_eighths is missing"):
        read_device(write(tmp_path, WHOLE + part.replace("l2_eighths = 2\n", "")))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nope", "is not TOML"),
        ('name = "x"', "sms, vector_tflops, bandwidth_gb_per_s, memory_gib, tdp_w are missing"),
        (WHOLE.replace("tdp_w = 300", ""), "tdp_w is missing"),
        ("sms = 4", "memory_gib, tdp_w are missing. Give them, or take"),
        ('like = "h2000"', r"my-gpu.toml, like: Unknown device 'h2000'. Did you mean 'h200'"),
        (WHOLE.replace('compute_capability = "8.9"\n', ""), "compute_capability is missing. A GPU states it"),
        (WHOLE + "bandwith = 3", "unknown key 'bandwith'"),
        (WHOLE.replace("900", "-1"), "bandwidth_gb_per_s is -1; it must be a number above 0"),
        (WHOLE.replace("900", "900e9"), "it is in GB/s"),
        (WHOLE.replace("23.5", "24000"), "it is in GiB"),
        (WHOLE.replace("sms = 100", "sms = 9999"), "multiprocessors"),
        (WHOLE.replace("tdp_w = 300", "tdp_w = 300000"), "it is in watts"),
        (WHOLE.replace("{ fp32 = 64.0 }", "64.0"), r"write it as \{ fp32"),
        (WHOLE.replace("{ fp32 = 64.0 }", "{ fp16 = 64.0 }"), "has no fp32"),
        (WHOLE.replace("{ fp32 = 64.0 }", "{ fp32 = 64000.0 }"), "do not make 64000 TFLOP/s"),
        (WHOLE.replace("tf32 = 64.0", "fp12 = 64.0"), "unknown key 'fp12'"),
        (WHOLE + "base_clock_mhz = 3000", "base_clock_mhz is above boost_clock_mhz"),
        (WHOLE + "idle_power_w = 300", "idle_power_w is not below tdp_w"),
        (WHOLE + "memory_mib = 23000", None),
        (WHOLE + "memory_mib = 18000", "memory_gib and memory_mib are not the same size"),
    ],
)
def test_a_wrong_file_is_refused_with_what_would_be_right(tmp_path, text, message):
    path = write(tmp_path, text)
    if message is None:
        assert read_device(path).memory_mib == 23000
        return
    with pytest.raises(DeviceError, match=message) as refusal:
        read_device(path)
    assert "\n" not in str(refusal.value)[: str(refusal.value).find("TOML") + 1]


def test_the_name_of_the_file_is_the_name_of_the_device(tmp_path):
    with pytest.raises(DeviceError, match="h200 is a device of the catalogue; call the file otherwise"):
        read_device(write(tmp_path, WHOLE, "H200.toml"))
    with pytest.raises(DeviceError, match="use letters, digits, dots and dashes"):
        read_device(write(tmp_path, WHOLE, "my gpu.toml"))
    with pytest.raises(DeviceError, match=r"Cannot read .*No such file"):
        device_of(str(tmp_path / "absent.toml"))


def test_another_power_limit_remembers_the_makers(tmp_path):
    device = read_device(write(tmp_path, 'like = "rtx-4090"\ntdp_w = 300'))
    assert (device.tdp_w, device.rated_tdp_w) == (300.0, find_device("rtx-4090").tdp_w)
    assert read_device(write(tmp_path, 'like = "rtx-4090"\nmemory_gib = 20')).rated_tdp_w is None
    assert read_device(write(tmp_path, WHOLE + "rated_tdp_w = 350")).rated_tdp_w == 350
    with pytest.raises(DeviceError, match="no driver takes a limit that far away"):
        read_device(write(tmp_path, 'like = "rtx-4090"\ntdp_w = 30'))
