import dataclasses
import pickle

import pytest

from foretell.devices import DTYPES, all_devices, find_device
from foretell.errors import DeviceError


def test_fp32_on_tensor_cores_means_tf32_where_there_is_one():
    assert find_device("a100").peak_tflops("fp32", tensor_cores=True) == 156
    assert find_device("t4").peak_tflops("fp32", tensor_cores=True) == 8.1


@pytest.mark.parametrize("name", ["t4", "v100", "p100", "p4", "2080ti", "cpu"])
def test_bf16_before_ampere_runs_at_the_vector_rate_of_fp32(name):
    device = find_device(name)
    assert device.peak_tflops("bf16", tensor_cores=True) == device.vector_tflops["fp32"]


def test_a_device_without_tensor_cores_answers_with_its_vector_rate():
    p100 = find_device("p100")
    assert not p100.has_tensor_cores
    assert p100.peak_tflops("fp16", tensor_cores=True) == p100.vector_tflops["fp16"] == 18.7
    assert find_device("p4").peak_tflops("int8", tensor_cores=True) == 22


def test_narrow_formats_widen_to_the_next_one_the_device_has():
    assert find_device("a100").peak_tflops("fp8", tensor_cores=True) == 312
    assert find_device("h100").peak_tflops("fp4", tensor_cores=True) == 1978.9
    assert find_device("b200").peak_tflops("fp4", tensor_cores=True) == 9000
    assert find_device("v100").peak_tflops("int8", tensor_cores=True) == 15.7


@pytest.mark.parametrize("device", all_devices(), ids=lambda device: device.id)
def test_every_format_has_a_positive_peak_and_tensor_cores_never_hurt(device):
    for dtype in DTYPES:
        vector = device.peak_tflops(dtype, tensor_cores=False)
        assert 0 < vector <= device.peak_tflops(dtype, tensor_cores=True)


def test_an_unknown_dtype_is_refused_with_the_closest():
    with pytest.raises(DeviceError, match=r"Unknown dtype 'bfp16' for a peak. Did you mean 'fp16'\?"):
        find_device("h200").peak_tflops("bfp16", tensor_cores=True)


def test_records_are_frozen_hashable_and_travel_between_processes():
    device = find_device("h200")
    with pytest.raises(dataclasses.FrozenInstanceError):
        device.sms = 1  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(device)) == device
    assert len({device, find_device("NVIDIA H200")}) == 1
    assert dataclasses.asdict(device)["mig_profiles"][0]["name"] == "1g.18gb"
