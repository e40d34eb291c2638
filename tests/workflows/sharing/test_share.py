"""``foretell.share``: two or three models on one GPU."""

import json
from itertools import pairwise
from typing import Any

import pytest

import foretell
from foretell.errors import DeviceError, InputError
from foretell.predictors.sharing import cores
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
    # against the whole GPU without MPS, which adds to every launch
    gain = sum(1 / job["slowdown"]["value"] for job in output["jobs"])
    assert 0.5 * gain < output["throughput_gain"]["value"] < gain


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


def test_a_measured_latency_replaces_the_predicted_one_and_others_feel_it() -> None:
    told = share([tiny_onnx()] * 2, batch_sizes=8)
    whole_ms = foretell.predict(tiny_onnx(), batch_size=8).latency_ms
    assert whole_ms is not None
    added_ms = told.jobs[0].alone_ms.value - whole_ms.value  # by MPS
    longer = share([tiny_onnx()] * 2, batch_sizes=8, measured_ms=[4 * whole_ms.value, None])
    assert longer.jobs[0].alone_ms.value == pytest.approx(4 * whole_ms.value + added_ms)
    assert longer.jobs[0].alone_ms.low == longer.jobs[0].alone_ms.high
    assert longer.jobs[1].alone_ms == told.jobs[1].alone_ms
    # others feel it: a partner of other kernels is in the way in another measure
    slowdowns = [one.jobs[1].slowdown for one in (told, longer)]
    assert slowdowns[0] is not None
    assert slowdowns[1] is not None
    assert slowdowns[1].value != slowdowns[0].value
    assert any("do they mean the same?" in warning for warning in longer.warnings)
    assert not any("do they mean the same?" in warning for warning in told.warnings)


def test_a_limit_of_sms_keeps_its_ratio_to_a_measured_latency() -> None:
    options: dict[str, Any] = {"batch_sizes": 8, "percentages": [50, 100]}
    told = share([tiny_onnx()] * 2, **options)
    whole_ms = foretell.predict(tiny_onnx(), batch_size=8).latency_ms
    assert whole_ms is not None
    known = share([tiny_onnx()] * 2, **options, measured_ms=[1.2 * whole_ms.value, None])
    assert known.jobs[0].alone_ms.value == pytest.approx(1.2 * told.jobs[0].alone_ms.value)


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
        (2, {"measured_ms": [1.0]}, "for each of the 2 models"),
        (2, {"measured_ms": 1.0}, "for each of the 2 models"),
        (2, {"measured_ms": [1.0, 0.0]}, "must be a positive number"),
        (2, {"percentages": 50, "method": "time-slicing"}, "limits of MPS"),
        (2, {"percentages": 0}, "above 0 and at most 100"),
        (2, {"input_shapes": ["3x8x8"] * 3}, "Got 3 input shapes for 2 models"),
    ],
)
def test_mistakes_are_one_clear_line(count: int, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        share([tiny_onnx()] * count, **options)


def test_models_share_two_cores_of_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "shipped", lambda: cores.CoreModel({2: (0.1, 0.1), 3: (0.5, 0.2)}))
    pair, trio = (share([tiny_onnx()] * count, device="cpu", batch_sizes=8) for count in (2, 3))
    assert pair.to_dict()["method"] == "cores"
    for sharing, least in ((pair, 1.0), (trio, 1.5)):
        for job in sharing.jobs:
            assert job.slowdown is not None
            assert job.together_ms is not None
            assert job.slowdown.value > least
            assert job.together_ms.value == pytest.approx(job.alone_ms.value * job.slowdown.value)
    assert any("two cores" in warning for warning in pair.warnings)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"device": "cpu", "method": "mps"}, "mps is a way to share a GPU, and cpu is a CPU"),
        ({"device": "h200", "method": "cores"}, "h200 is a GPU; models share it by mps or time-slicing"),
        ({"device": "cpu"}, "nobody measured how models share it"),
    ],
)
def test_a_device_is_shared_in_its_own_way(options: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "shipped", lambda: None)
    with pytest.raises(DeviceError, match=said):
        share([tiny_onnx(), tiny_onnx()], **options)


def test_mps_adds_to_every_launch() -> None:
    under_mps, in_turns = (share([tiny_onnx()] * 2, method=method) for method in ("mps", "time-slicing"))
    (job, _), (sliced, _) = under_mps.jobs, in_turns.jobs
    added_ms = job.alone_ms.value - sliced.alone_ms.value
    assert 0.0004 < added_ms < 0.05
    assert job.alone_ms.low - sliced.alone_ms.low == pytest.approx(added_ms)
    assert any("alone under MPS" in text and f"{added_ms:.2g} ms" in text for text in under_mps.warnings)
    assert not any("under MPS" in text for text in in_turns.warnings)


def test_fewer_sms_are_never_faster_alone() -> None:
    """Nine tenths of the SMs come from measured slices, all of them from the whole device and what MPS adds."""
    model = tiny_onnx(size=64)
    alone = {part: share([model] * 2, percentages=[part, 100]).jobs[0].alone_ms.value for part in (50, 90, 99, 100)}
    times = list(alone.values())
    # to the last digits: the same sum in another order
    assert all(more <= fewer * (1 + 1e-12) for fewer, more in pairwise(times))


def test_what_mps_adds_is_said_of_those_that_it_is_added_to() -> None:
    told = share([tiny_onnx()] * 2, percentages=[30, 60]).warnings
    assert not any("are added" in text for text in told)
