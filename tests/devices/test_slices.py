import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretell.devices import DTYPES, all_devices, effective, find_device, parse_slice
from foretell.errors import DeviceError

GPUS = [device for device in all_devices() if device.is_nvidia]
MPS = [device for device in GPUS if device.architecture != "Pascal"]
WITH_MIG = [device for device in GPUS if device.mig_profiles]
H200 = find_device("h200")


@pytest.mark.parametrize(("percent", "sms"), [(20, 26), (14, 18), (46, 60), (50, 66), (1, 2), (100, 132)])
def test_mps_rounds_down_to_pairs_of_sms(percent, sms):
    parsed = parse_slice(f"mps:{percent}", H200)
    assert (parsed.kind, parsed.text, parsed.sms) == ("mps", f"mps:{percent}", sms)
    assert (parsed.memory_gib, parsed.bandwidth_fraction, parsed.l2_fraction) == (H200.memory_gib, 1, 1)


@pytest.mark.parametrize(
    "written", ["mig:1g.18gb", "1g.18gb", "nvidia.com/mig-1g.18gb", "MIG:1G.18GB", " mig-1g.18gb "]
)
def test_mig_profiles_as_people_write_them(written):
    parsed = parse_slice(written, H200)
    assert (parsed.kind, parsed.text, parsed.sms, parsed.memory_gib) == ("mig", "mig:1g.18gb", 16, 16.0)


@pytest.mark.parametrize("written", ["mig:1g.18gb+me", "nvidia.com/mig-1g.18gb.me", "1g.18gb+me"])
def test_media_extensions_are_their_own_profile(written):
    assert parse_slice(written, H200).text == "mig:1g.18gb+me"


def test_canonical_text_reads_back_as_the_same_slice():
    for device in GPUS:
        texts = ["sms:3", *(f"mig:{profile.name}" for profile in device.mig_profiles)]
        for text in texts:
            parsed = parse_slice(text, device)
            assert parse_slice(parsed.text, device) == parsed


@pytest.mark.parametrize(
    ("device", "text", "message"),
    [
        ("h200", "mps:0", "Slice 'mps:0' is not a share of h200: write mps:1 to mps:100, in percent of its SMs."),
        ("h200", "mps:101", "Slice 'mps:101' is not a share of h200: write mps:1 to mps:100, in percent of its SMs."),
        ("h200", "mps:-5", "Slice 'mps:-5' is not a share of h200: write mps:1 to mps:100, in percent of its SMs."),
        ("h200", "mps:nan", "Slice 'mps:nan' is not a share of h200: write mps:1 to mps:100, in percent of its SMs."),
        ("h200", "mps:", "Slice 'mps:' is not a share of h200: write mps:1 to mps:100, in percent of its SMs."),
        ("h200", "mps:half", "Slice 'mps:half' is not a share of h200: write mps:1 to mps:100, in percent of its SMs."),
        ("p100", "mps:50", "Slice 'mps:50' needs Volta or newer; p100 (Pascal) shares all its SMs."),
        ("h200", "sms:0", "Slice 'sms:0' asks for 0 SMs, but h200 has 132: write sms:1 to sms:132."),
        ("h200", "sms:-1", "Slice 'sms:-1' asks for -1 SMs, but h200 has 132: write sms:1 to sms:132."),
        ("h200", "sms:133", "Slice 'sms:133' asks for 133 SMs, but h200 has 132: write sms:1 to sms:132."),
        ("h200", "sms:many", "Slice 'sms:many' has no number of SMs: write sms:1 to sms:132."),
        ("h200", "sms:1.5", "Slice 'sms:1.5' has no number of SMs: write sms:1 to sms:132."),
        ("t4", "mig:1g.5gb", "Slice 'mig:1g.5gb' needs MIG, which t4 does not have: use mps:PERCENT or sms:COUNT."),
        (
            "h200",
            "mig:1g.5gb",
            "The catalogue has no MIG profile '1g.5gb' for h200. Choose from: "
            "1g.18gb, 1g.18gb+me, 1g.35gb, 2g.35gb, 3g.71gb, 4g.71gb, 7g.141gb.",
        ),
        (
            "cpu",
            "mps:50",
            "Slice 'mps:50' needs a GPU, but 'cpu' is a CPU: leave the slice out, or see: foretell devices",
        ),
        (
            "h200",
            "half",
            "Unknown slice 'half'. Write mps:PERCENT, mig:PROFILE or sms:COUNT, such as mps:30 or sms:8.",
        ),
        ("h200", "", "Unknown slice ''. Write mps:PERCENT, mig:PROFILE or sms:COUNT, such as mps:30 or sms:8."),
    ],
)
def test_impossible_slices_say_what_is_possible(device, text, message):
    with pytest.raises(DeviceError) as caught:
        parse_slice(text, find_device(device))
    assert str(caught.value) == message


def test_a_slice_of_a_larger_device_is_refused():
    with pytest.raises(DeviceError, match=r"'sms:132' has 132 SMs, but t4 has 40"):
        effective(find_device("t4"), parse_slice("sms:132", H200))


@pytest.mark.parametrize("device", all_devices(), ids=lambda device: device.id)
def test_no_slice_is_the_whole_device(device):
    full = effective(device)
    assert (full.sms, full.sm_fraction, full.slice) == (device.sms, 1.0, None)
    assert full.bandwidth_gb_per_s == device.bandwidth_gb_per_s
    assert (full.l2_mib, full.memory_gib) == (device.l2_mib, device.memory_gib)
    for dtype in DTYPES:
        assert full.peak_tflops(dtype, tensor_cores=True) == device.peak_tflops(dtype, tensor_cores=True)


def test_mig_uses_counts_of_sms_not_sevenths():
    a100 = find_device("a100")
    assert effective(a100, parse_slice("7g.40gb", a100)).sms == 98
    h100 = find_device("h100")
    part = effective(h100, parse_slice("3g.40gb", h100))
    assert part.sms == 60
    assert part.peak_tflops("bf16", tensor_cores=True) == pytest.approx(989.4 * 60 / 132)
    assert (part.bandwidth_gb_per_s, part.l2_mib) == (1675, 25)


@pytest.mark.parametrize("device", WITH_MIG, ids=lambda device: device.id)
def test_mig_profiles_fit_into_their_device(device):
    assert {device.architecture} <= {"Ampere", "Hopper", "Blackwell"}
    for profile in device.mig_profiles:
        assert 0 < profile.sms <= device.sms
        assert profile.memory_gib <= device.memory_gib + 0.25
        assert 1 <= profile.l2_eighths <= profile.bandwidth_eighths <= 8
        assert profile.max_instances * profile.sms <= device.sms
        assert profile.max_instances * profile.bandwidth_eighths <= 8
        named_gb = float(profile.name.partition(".")[2].partition("gb")[0])
        assert 0.85 * named_gb < profile.memory_gib <= named_gb
    names = [profile.name for profile in device.mig_profiles]
    assert len(names) == len(set(names))


def hardware(device, slice_):
    part = effective(device, slice_)
    peaks = [part.peak_tflops(dtype, tensor_cores=on) for dtype in DTYPES for on in (False, True)]
    return [part.sms, part.bandwidth_gb_per_s, part.l2_mib, part.memory_gib, *peaks]


def assert_no_less(larger, smaller):
    assert all(more >= less for more, less in zip(larger, smaller, strict=True))


@settings(deadline=None)
@given(st.sampled_from(GPUS), st.data())
def test_more_sms_are_never_less_hardware(device, data):
    low, high = sorted(data.draw(st.tuples(*[st.integers(1, device.sms)] * 2)))
    small, large = (parse_slice(f"sms:{count}", device) for count in (low, high))
    assert_no_less(hardware(device, large), hardware(device, small))
    assert_no_less(hardware(device, None), hardware(device, large))


@settings(deadline=None)
@given(st.sampled_from(MPS), st.floats(1, 100), st.floats(1, 100))
def test_a_larger_percentage_is_never_less_hardware(device, one, other):
    small, large = (parse_slice(f"mps:{percent!r}", device) for percent in sorted((one, other)))
    assert_no_less(hardware(device, large), hardware(device, small))
    assert_no_less(hardware(device, None), hardware(device, large))


@settings(deadline=None)
@given(st.sampled_from(WITH_MIG), st.data())
def test_a_larger_mig_instance_is_never_less_hardware(device, data):
    one, other = (data.draw(st.sampled_from(device.mig_profiles)) for _ in range(2))
    bigger = [
        one.sms >= other.sms,
        one.bandwidth_eighths >= other.bandwidth_eighths,
        one.l2_eighths >= other.l2_eighths,
    ]
    parts = [hardware(device, parse_slice(f"mig:{profile.name}", device)) for profile in (one, other)]
    if all(bigger) and one.memory_gib >= other.memory_gib:
        assert_no_less(*parts)
    assert_no_less(hardware(device, None), parts[0])


@pytest.mark.parametrize("text", ["mps:50", "sms:8", "mig:1g.18gb"])
def test_a_gpu_of_another_maker_has_no_slices(text):
    with pytest.raises(
        DeviceError, match=f"Slice '{text}' is NVIDIA's, and mi300x is a GPU of AMD: leave the slice out"
    ):
        parse_slice(text, find_device("mi300x"))
