import pytest

from foretell.devices import all_devices, attainable_bandwidth_gb_per_s, find_device

GPUS = [device for device in all_devices() if device.is_nvidia]


@pytest.mark.parametrize("device", all_devices(), ids=lambda device: device.id)
def test_a_whole_device_reaches_its_documented_bandwidth(device):
    assert attainable_bandwidth_gb_per_s(device, device.sms) == device.bandwidth_gb_per_s


@pytest.mark.parametrize("device", GPUS, ids=lambda device: device.id)
def test_more_sms_never_draw_less_and_few_draw_at_least_their_share(device):
    curve = [attainable_bandwidth_gb_per_s(device, sms) for sms in range(1, device.sms + 1)]
    assert curve == sorted(curve)
    assert all(value >= device.bandwidth_gb_per_s * sms / device.sms * 0.999 for sms, value in enumerate(curve, 1))


def test_one_sm_cannot_fill_the_memory():
    for device in GPUS:
        assert attainable_bandwidth_gb_per_s(device, 1) < 0.4 * device.bandwidth_gb_per_s


def test_the_share_of_the_memory_slices_bounds_the_rest():
    h200 = find_device("h200")
    assert attainable_bandwidth_gb_per_s(h200, 26, share=1 / 8) == 600
    assert attainable_bandwidth_gb_per_s(h200, 132, share=1 / 2) == 2400
