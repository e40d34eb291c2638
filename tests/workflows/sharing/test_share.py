"""``foretell.share``: two or three models on one GPU."""

import json
from typing import Any

import pytest

import foretell
from foretell.errors import DeviceError, InputError
from foretell.testing import tiny_onnx
from foretell.workflows.sharing.share import share


def test_two_models_under_mps_have_everything_that_the_contract_names() -> None:
    both = share([tiny_onnx(), tiny_onnx(size=64)], batch_sizes=[1, 64], dtypes="fp16", limits_ms=[1000, 1e-6])
    output = json.loads(json.dumps(both.to_dict(), allow_nan=False))
    assert {"device", "method", "fits", "jobs", "memory_mib", "throughput_gain", "warnings"} <= set(output)
    assert (output["device"], output["method"], output["fits"]) == ("h200", "mps", True)
    assert [job["keeps_limit"] for job in output["jobs"]] == [True, False]
    assert [job["batch_size"] for job in output["jobs"]] == [1, 64]
    for job in output["jobs"]:
        assert job["together_ms"]["value"] == pytest.approx(job["alone_ms"]["value"] * job["slowdown"]["value"])
        assert job["together_ms"]["low"] <= job["together_ms"]["value"] <= job["together_ms"]["high"]
        assert job["slowdown"]["low"] >= 1.0
    gain = sum(1 / job["slowdown"]["value"] for job in output["jobs"])
    assert output["throughput_gain"]["value"] == pytest.approx(gain)


def test_without_limits_nothing_is_said_about_them() -> None:
    both = share([tiny_onnx(), tiny_onnx()], method="time-slicing")
    assert all("keeps_limit" not in job for job in both.to_dict()["jobs"])
    assert "time-slicing" in repr(both)


def test_time_slicing_gains_nothing() -> None:
    three = share([tiny_onnx()] * 3, method="time-slicing")
    assert three.throughput_gain is not None
    assert three.throughput_gain.value < 1.0


def test_memory_is_that_of_all_processes() -> None:
    alone = foretell.predict(tiny_onnx()).device_memory_mib
    both = share([tiny_onnx(), tiny_onnx()], method="time-slicing")
    assert alone is not None
    assert both.memory_mib is not None
    assert both.memory_mib.value == pytest.approx(2 * alone.value)


def test_models_that_do_not_fit_say_so_in_a_sentence() -> None:
    both = share([tiny_onnx(size=64), tiny_onnx()], batch_sizes=[2**20, 1])
    assert not both.fits
    assert any("do not fit" in warning for warning in both.warnings)
    assert "throughput_gain" not in both.to_dict()
    assert all("slowdown" not in job for job in both.to_dict()["jobs"])
    assert len(both.rows()) == 2


def test_percentages_are_limits_alone_too() -> None:
    limited = share([tiny_onnx(size=64)] * 2, batch_sizes=256, percentages=[20, 80])
    whole = foretell.predict(tiny_onnx(size=64), batch_size=256).latency_ms
    assert whole is not None
    assert limited.jobs[0].alone_ms.value > limited.jobs[1].alone_ms.value >= whole.value
    assert [job["percentage"] for job in limited.to_dict()["jobs"]] == [20, 80]


def test_a_gpu_whose_sharing_was_not_measured_is_extrapolated() -> None:
    models: list[Any] = [tiny_onnx(), tiny_onnx()]
    known, other = share(models, method="time-slicing"), share(models, device="a100", method="time-slicing")
    assert (known.extrapolated, other.extrapolated) == (False, True)
    assert any("not on a100" in warning for warning in other.warnings)
    ours, theirs = known.jobs[0].slowdown, other.jobs[0].slowdown
    assert ours is not None
    assert theirs is not None
    assert theirs.high - theirs.low > ours.high - ours.low


@pytest.mark.parametrize(
    ("count", "options", "said"),
    [
        (1, {}, "Got 1 model; two or three"),
        (4, {}, "Got 4 models; two or three"),
        (2, {"method": "mig"}, "Unknown method 'mig'"),
        (2, {"limits_ms": [1, 2, 3]}, "Got 3 limits for 2 models"),
        (2, {"limits_ms": -1}, "must be a positive number"),
        (3, {"batch_sizes": [1, 2]}, "Got 2 batch sizes for 3 models"),
        (2, {"percentages": 50, "method": "time-slicing"}, "limits of MPS"),
        (2, {"percentages": 0}, "above 0 and at most 100"),
        (2, {"input_shapes": ["3x8x8"] * 3}, "Got 3 input shapes for 2 models"),
    ],
)
def test_mistakes_are_one_clear_line(count: int, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        share([tiny_onnx()] * count, **options)


def test_a_cpu_is_refused() -> None:
    cpu = next(device.id for device in foretell.devices() if device.is_cpu)
    with pytest.raises(DeviceError, match="is a CPU"):
        share([tiny_onnx(), tiny_onnx()], device=cpu)
