"""A fit finds what made the slices."""

import numpy as np
import pytest

from foretell.devices import find_device, parse_slice
from foretell.errors import InputError
from foretell.predictors.sample import Sample
from foretell.predictors.slices.features import SLICE_COLUMNS
from foretell.predictors.slices.fit import MeasuredSlices, fit_slices
from foretell.predictors.slices.model import SliceModel
from small.small_samples import blocks, sample_of, workload

H200 = find_device("h200")
SMS = (12, 26, 66, 104, 132)


def truth() -> SliceModel:
    """Long launches spread over the SMs, short ones do not; products less so in green contexts."""
    weights = {"log_launch_us": 1.0, "product": 0.5, "green_matmul": -1.0}
    width = len(SLICE_COLUMNS)
    return SliceModel(
        "h200", -4.0, tuple(weights.get(name, 0.0) for name in SLICE_COLUMNS), (0.0,) * width, (1.0,) * width, 0.4
    )


def samples() -> list[Sample]:
    return [
        sample_of(workload(graph=blocks(batch, width)), f"tiny:{width}")
        for width in (128, 512, 1024, 2048)
        for batch in (1, 64, 1024, 4096)
    ]


def ratio(model: SliceModel, sample: Sample, sms: int, *, green: bool) -> float:
    kind = f"sms:{sms}" if green else f"mps:{100 * (sms + 0.5) / 132 if sms < 132 else 100}"
    part = parse_slice(kind, H200)
    assert part.sms == sms
    assert sample.unit_us is not None
    times_us = model.unit_times_us(sample.units.features, sample.unit_us, part, H200.sms)
    return float(times_us @ sample.units.counts / (sample.unit_us @ sample.units.counts))


def measured(known_samples: list[Sample], methods: tuple[bool, ...] = (False, True)) -> MeasuredSlices:
    rows = [(i, sms, green) for i in range(len(known_samples)) for sms in SMS for green in methods]
    latency = [
        known_samples[i].truth["latency_ms"] * ratio(truth(), known_samples[i], sms, green=green)
        for i, sms, green in rows
    ]
    places, sms, green = zip(*rows, strict=True)
    return MeasuredSlices(np.array(places), np.array(sms, float), np.array(green), np.array(latency))


def test_the_fit_recovers_the_true_weights():
    known_samples = samples()
    model = fit_slices(
        known_samples,
        [sample.unit_us for sample in known_samples],
        measured(known_samples),
        "h200",
        H200.sms,
        penalty=1e-3,
    )
    assert model.device == "h200"
    assert model.mps_launch_us == pytest.approx(0.4, rel=0.05)
    for sample in known_samples:
        for sms in SMS:
            for green in (False, True):
                predicted = ratio(model, sample, sms, green=green)
                assert predicted == pytest.approx(ratio(truth(), sample, sms, green=green), rel=0.02)


def test_weights_that_are_pulled_hard_are_small():
    known_samples = samples()
    times = [sample.unit_us for sample in known_samples]
    free, pulled = (
        fit_slices(known_samples, times, measured(known_samples), "h200", H200.sms, penalty) for penalty in (1e-3, 1.0)
    )
    assert np.abs(pulled.weights).max() < 0.2 * np.abs(free.weights).max()


def test_one_bad_measurement_does_not_matter_much():
    known_samples = samples()
    times, rows = [sample.unit_us for sample in known_samples], measured(known_samples)
    rows.latency_ms[7] *= 3
    model = fit_slices(known_samples, times, rows, "h200", H200.sms, penalty=1e-3)
    far = [abs(ratio(model, s, 26, green=False) / ratio(truth(), s, 26, green=False) - 1) for s in known_samples]
    assert np.median(far) < 0.02


def test_without_mps_measurements_its_cost_is_zero():
    known_samples = samples()
    times = [sample.unit_us for sample in known_samples]
    assert fit_slices(known_samples, times, measured(known_samples, (True,)), "h200", H200.sms).mps_launch_us == 0.0


def test_no_slices_are_an_error():
    known_samples = samples()
    none = measured(known_samples).of(np.zeros(0, np.intp))
    assert len(none) == 0
    with pytest.raises(InputError, match="no measured slice"):
        fit_slices(known_samples, [sample.unit_us for sample in known_samples], none, "h200", H200.sms)
