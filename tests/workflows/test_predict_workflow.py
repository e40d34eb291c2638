import sys

import pytest

import foretell
from foretell.devices import find_device
from foretell.errors import DeviceError, InputError, UnknownNameError
from foretell.records import METRICS
from foretell.testing import tiny_graph, tiny_onnx
from foretell.workflows import diagnose


@pytest.mark.parametrize("device", [d.id for d in foretell.devices()])
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_every_device_answers(device, mode):
    p = foretell.predict(tiny_onnx(), device=device, batch_size=4, mode=mode)
    assert p.device == device
    for name in ("latency_ms", "throughput_per_s", "memory_mib", "energy_j", "power_w"):
        estimate = getattr(p, name)
        assert 0 < estimate.low < estimate.value <= estimate.high, name
    assert any("uncalibrated" in w for w in p.warnings)


def test_json_has_the_documented_keys_and_no_absent_metric():
    found = foretell.predict(tiny_onnx(), batch_size=8, dtype="fp16").to_dict()
    head = ["model", "device", "slice", "runtime", "mode", "batch_size", "dtype", "source"]
    assert list(found)[: len(head)] == head
    assert found["source"] == "predicted"
    assert "occupancy" not in found
    assert set(found) - set(head) >= {"latency_ms", "memory_mib", "coverage", "predictor", "warnings"}
    assert all(set(found[m]) == {"value", "low", "high"} for m in METRICS if m in found)


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


def test_half_precision_moves_half_the_bytes():
    full, half = (foretell.load_graph(tiny_onnx(), dtype=d) for d in ("fp32", "fp16"))
    assert half.state_bytes * 2 == full.state_bytes


def test_a_graph_can_be_given_instead_of_a_model():
    assert foretell.predict(tiny_graph(), device="t4", batch_size=2).batch_size == 2


def test_a_device_record_can_be_given():
    assert foretell.predict(tiny_onnx(), device=find_device("l4")).device == "l4"


def test_what_does_not_fit_is_said():
    p = foretell.predict(tiny_onnx(), device="t4", batch_size=2**20)
    assert any("will not fit" in w for w in p.warnings)


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
        ({"input_shape": {"nothing": (3, 4)}}, InputError),
    ],
)
def test_wrong_arguments_are_named(arguments, error):
    with pytest.raises(error):
        foretell.predict(tiny_onnx(), **arguments)


def test_diagnosis_tells_what_is_here():
    found = diagnose()
    assert found.libraries["onnx"]
    assert found.frontends["ONNX"] is None
    assert found.python == sys.version.split()[0]
