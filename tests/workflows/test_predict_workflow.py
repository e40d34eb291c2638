import sys
from dataclasses import replace

import pytest

import foretell
from foretell.devices import find_device
from foretell.errors import DeviceError, InputError, UnknownNameError
from foretell.predictors.roofline import RooflinePredictor
from foretell.records import METRICS
from foretell.registry import Registry
from foretell.testing import one_node, tiny_graph, tiny_onnx
from foretell.workflows.measure.diagnose import diagnose


@pytest.mark.parametrize("device", [d.id for d in foretell.devices()])
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_every_device_answers(device, mode):
    p = foretell.predict(tiny_onnx(), device=device, batch_size=4, mode=mode)
    assert p.device == device
    fitted = p.predictor in ("unit-network", "unit-trees")
    # nobody measured the power of the CPU, and its training steps
    metrics = ("latency_ms", "throughput_per_s", "memory_mib", "energy_j", "power_w")
    for name in metrics[:3] if fitted and device == "cpu" else metrics:
        estimate = getattr(p, name)
        assert 0 < estimate.low < estimate.value <= estimate.high, name
    measured = device == "h200" or (device, mode) == ("cpu", "inference")
    assert fitted == measured, "only measured devices have a fitted predictor"
    assert any("uncalibrated" in w for w in p.warnings) != fitted


def test_json_has_the_documented_keys_and_no_absent_metric():
    prediction = foretell.predict(tiny_onnx(), batch_size=8, dtype="fp16").to_dict()
    head = ["model", "device", "slice", "runtime", "mode", "batch_size", "dtype", "source"]
    assert list(prediction)[: len(head)] == head
    assert prediction["source"] == "predicted"
    assert (
        0 < prediction["occupancy"]["low"] < prediction["occupancy"]["value"] < prediction["occupancy"]["high"] <= 100
    )
    assert "host_latency_ms" not in prediction
    assert set(prediction) - set(head) >= {"latency_ms", "memory_mib", "coverage", "predictor", "warnings"}
    assert all(set(prediction[m]) == {"value", "low", "high"} for m in METRICS if m in prediction)


@pytest.mark.parametrize("elsewhere", [{"device": "l4"}, {"slice": "mps:50"}, {"predictor": "roofline"}])
def test_occupancy_is_absent_where_no_kernel_was_counted(elsewhere):
    assert foretell.predict(tiny_onnx(), **elsewhere).occupancy is None


def test_more_items_take_more_time_and_memory():
    runs = [foretell.predict(tiny_onnx(), batch_size=b) for b in (1, 64, 4096)]
    assert runs[0].latency_ms.value < runs[1].latency_ms.value < runs[2].latency_ms.value
    assert runs[0].memory_mib.value < runs[2].memory_mib.value


def test_a_smaller_slice_is_slower():
    times = [
        foretell.predict(tiny_onnx(), batch_size=4096, slice=s).latency_ms.value for s in ("mps:10", "mps:50", None)
    ]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[2]


def test_all_sms_are_the_whole_device_and_the_cost_of_mps_is_in_the_interval():
    full, green, mps = (foretell.predict(tiny_onnx(), batch_size=64, slice=s) for s in (None, "sms:132", "mps:100"))
    assert green.latency_ms.value == pytest.approx(full.latency_ms.value, rel=1e-5)
    assert mps.latency_ms.value == pytest.approx(full.latency_ms.value, rel=1e-5)
    assert mps.latency_ms.high > 1.05 * full.latency_ms.high
    assert any("MPS itself may cost" in warning for warning in mps.warnings)
    assert (green.slice, mps.slice) == ("sms:132", "mps:100")


def test_half_precision_moves_half_the_bytes():
    full, half = (foretell.load_graph(tiny_onnx(), dtype=d) for d in ("fp32", "fp16"))
    assert half.state_bytes * 2 == full.state_bytes


def test_a_graph_can_be_given_instead_of_a_model():
    assert foretell.predict(tiny_graph(), device="t4", batch_size=2).batch_size == 2


def test_a_device_record_can_be_given():
    assert foretell.predict(tiny_onnx(), device=find_device("l4")).device == "l4"


def test_what_does_not_fit_is_said():
    p = foretell.predict(tiny_onnx(), device="t4", batch_size=2**20)
    assert p.fits == p.to_dict()["fits"] == "no"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"device": "a10o"}, DeviceError),
        ({"slice": "sms:999"}, DeviceError),
        ({"batch_size": 0}, InputError),
        ({"dtype": "fp33"}, InputError),
        ({"mode": "guessing"}, InputError),
        ({"runtime": "steam"}, InputError),
        ({"optimizer": "adamw"}, InputError),
        ({"mode": "training", "optimizer": "adamx"}, InputError),
        ({"predictor": "oracle"}, UnknownNameError),
        ({"context": 0}, InputError),
        ({"latency_limit_ms": 0}, InputError),
        ({"latency_limit_ms": float("nan"), "device": "t4"}, InputError),
        ({"input_shape": {"nothing": (3, 4)}}, InputError),
    ],
)
def test_wrong_arguments_are_named(arguments, error):
    with pytest.raises(error):
        foretell.predict(tiny_onnx(), **arguments)


MIG = "1g.5gb"


def tiny_file(folder):
    path = folder / "tiny.onnx"
    path.write_bytes(tiny_onnx().SerializeToString())
    return path


def test_the_call_of_dippm(tmp_path):
    """Memory, energy, latency and MIG from a path, and a word on where an A100's numbers come from."""
    p = foretell.predict(tiny_file(tmp_path), device="a100", batch_size=32, input_shape=(3, 16, 16), use_cache=False)
    assert all(e.value > 0 for e in (p.memory_mib, p.device_memory_mib, p.energy_j, p.latency_ms))
    assert (p.device, p.mig) == ("a100-sxm-40gb", MIG)
    assert f"{p.device_memory_mib.value:,.0f} MiB" in p.mig_reason
    assert "a100-sxm-40gb is extrapolated from an H200 until measured data covers it" in p.warnings[0]
    assert "no measurement of a whole model on NVIDIA A100-SXM4-40GB by foretell went into this answer" in p.warnings[0]
    assert p.to_dict()["mig_profile"] == {"name": MIG, "reason": p.mig_reason}


@pytest.mark.parametrize("arguments", [{"device": "t4"}, {"device": "cpu"}, {"device": "a100", "slice": "mig:1g.5gb"}])
def test_no_mig_profile_where_none_was_asked_for(arguments):
    p = foretell.predict(tiny_onnx(), **arguments)
    assert (p.mig, p.mig_reason) == (None, None)
    assert "mig_profile" not in p.to_dict()


def test_more_memory_needs_a_larger_profile_up_to_none():
    runs = [foretell.predict(tiny_onnx(), device="a100", batch_size=2**n) for n in range(0, 21, 4)]
    sizes = ["1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb", None]
    profiles = [sizes.index(p.mig) for p in runs]
    assert profiles == sorted(profiles)
    assert profiles[0] < profiles[-1]


def test_the_json_says_that_no_mig_profile_is_large_enough():
    advice = foretell.predict(one_node("Relu", [(1 << 33,)], [(1 << 33,)]), device="a100").to_dict()["mig_profile"]
    assert advice["name"] is None
    assert advice["reason"].startswith("memory: needs ")


def test_a_latency_limit_moves_the_profile_up_until_none_is_left():
    def mig(limit_ms):
        return foretell.predict(tiny_onnx(), device="a100", batch_size=4096, latency_limit_ms=limit_ms)

    def alone(profile):
        return foretell.predict(tiny_onnx(), device="a100", batch_size=4096, slice=f"mig:{profile}").latency_ms.value

    assert alone("1g.5gb") > alone("1g.10gb") > alone("3g.20gb") > alone("7g.40gb")
    assert mig(alone("1g.5gb")).mig == "1g.5gb"  # equal is within
    assert mig(alone("1g.10gb")).mig == "1g.10gb"  # twice the bandwidth, which is what bounds this model
    assert mig(alone("3g.20gb")).mig == "3g.20gb"
    assert mig(alone("7g.40gb")).mig == "7g.40gb"
    late = mig(alone("7g.40gb") * 0.99)
    assert late.mig is None
    assert late.mig_reason.startswith("latency: the fastest profile that holds it, 7g.40gb, takes")


def test_a_missed_limit_is_a_warning_on_every_device():
    slow = foretell.predict(tiny_onnx(), device="t4", latency_limit_ms=1e-6)
    assert any("more than the limit of 1e-06 ms" in w for w in slow.warnings)
    assert not any("limit" in w for w in foretell.predict(tiny_onnx(), device="t4", latency_limit_ms=1e6).warnings)


def test_a_predictor_without_memory_or_latency(monkeypatch):
    class Partial(RooflinePredictor):
        lost = "device_memory_mib"

        def predict(self, workload):
            return replace(super().predict(workload), **{self.lost: None})

    monkeypatch.setattr(Registry, "load", lambda registry, name: Partial)
    assert foretell.predict(tiny_graph(), device="a100").mig_reason is None
    Partial.lost = "latency_ms"
    assert foretell.predict(tiny_graph(), device="a100").mig == MIG
    with pytest.raises(InputError, match="does not predict latency"):
        foretell.predict(tiny_graph(), device="a100", latency_limit_ms=5)


def test_the_device_of_the_constants_is_not_called_unmeasured():
    warning = foretell.predict(tiny_onnx(), device="h200", predictor="roofline").warnings[0]
    assert "measurements of NVIDIA H200" in warning
    assert "extrapolated" not in warning


def test_the_diagnosis_lists_what_is_installed():
    diagnosis = diagnose()
    assert diagnosis.libraries["onnx"]
    assert diagnosis.frontends["ONNX"] is None
    assert diagnosis.python == sys.version.split()[0]


def test_tf32_is_not_fp32_and_no_precision_of_a_cpu() -> None:
    plain, other = (foretell.predict(tiny_onnx(), dtype=dtype) for dtype in ("fp32", "TF32"))
    assert (plain.dtype, other.dtype) == ("fp32", "tf32")
    assert not any("TF32" in warning for warning in other.warnings), "it was measured"
    with pytest.raises(InputError, match="TF32"):
        foretell.predict(
            tiny_onnx(), device=next(place.id for place in foretell.devices() if place.is_cpu), dtype="tf32"
        )
    with pytest.raises(InputError, match="TF32 is a precision of NVIDIA's GPUs; mi300x is a GPU of AMD: use fp32"):
        foretell.predict(tiny_onnx(), device="mi300x", dtype="tf32")


def test_a_gpu_without_double_precision_does_not_answer_in_it() -> None:
    with pytest.raises(InputError, match=r"No rate in fp64 is known of apple-m4-max .*: use fp32"):
        foretell.predict(tiny_onnx(), device="apple-m4-max", dtype="fp64")
    slow = foretell.predict(tiny_onnx(), device="rtx-4090", dtype="fp64", batch_size=4096).latency_ms
    fast = foretell.predict(tiny_onnx(), device="rtx-4090", batch_size=4096).latency_ms
    assert slow.value > fast.value


def test_channels_last_is_stated_in_the_answer() -> None:
    answer = foretell.predict(tiny_onnx(), dtype="fp16", channels_last=True)
    assert answer.to_dict()["channels_last"] is True
    assert "channels_last" not in foretell.predict(tiny_onnx(), dtype="fp16").to_dict()
