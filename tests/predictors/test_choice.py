"""Which predictor answers: the one that was named, a file, or the best for the device."""

from pathlib import Path

import pytest

from foretell.devices import all_devices, find_device
from foretell.errors import ModelError, UnknownNameError
from foretell.predictors import PREDICTORS, best_predictor, find_predictor
from foretell.predictors.roofline import RooflinePredictor
from foretell.predictors.unit.predictor import UnitPredictor
from foretell.records import Prediction, Target, Workload
from foretell.testing import tiny_graph


@pytest.mark.parametrize("name", list(PREDICTORS))
def test_every_name_is_a_predictor_of_that_name(name: str) -> None:
    assert PREDICTORS.load(name).name == name
    assert isinstance(find_predictor(name, "t4"), PREDICTORS.load(name))


def test_the_measured_device_has_a_fitted_predictor() -> None:
    assert best_predictor("h200") == "unit-network"
    predictor = find_predictor(None, "h200")
    assert isinstance(predictor, UnitPredictor)
    prediction = predictor.predict(Workload(tiny_graph(), Target(find_device("h200"))))
    assert prediction.predictor == "unit-network"
    assert prediction.latency_ms
    assert prediction.latency_ms.low < prediction.latency_ms.value < prediction.latency_ms.high


@pytest.mark.parametrize("device", [device.id for device in all_devices()])
def test_the_best_predictor_of_a_device_answers_for_it(device: str) -> None:
    place = find_device(device)
    target = Target(place, None, "eager" if place.is_cpu else "cuda-graph")
    prediction = find_predictor(None, device).predict(Workload(tiny_graph(), target))
    assert prediction.predictor == best_predictor(device)
    assert prediction.extrapolated == (device not in ("h200", "cpu"))
    assert (prediction.predictor == "roofline") == (not place.is_nvidia and device != "cpu")


def test_a_name_goes_before_the_device() -> None:
    assert isinstance(find_predictor("roofline", "h200"), RooflinePredictor)


def test_an_unknown_name_is_refused_with_the_closest() -> None:
    with pytest.raises(UnknownNameError, match=r"Unknown predictor 'unit-tree'\. Did you mean 'unit-trees'"):
        find_predictor("unit-tree", "h200")


def test_a_file_is_read_and_an_absent_one_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.zip"
    with pytest.raises(ModelError, match="There is no file"):
        find_predictor(str(path), "h200")
    path.write_bytes(b"something else")
    with pytest.raises(ModelError, match="not a fitted predictor"):
        find_predictor(str(path), "h200")


@pytest.mark.parametrize(("device", "maker"), [("mi300x", "AMD"), ("max-1550", "Intel"), ("apple-m4-max", "Apple")])
def test_a_gpu_of_another_maker_is_said_to_be_unmeasured_in_a_wide_interval(device: str, maker: str) -> None:
    def predicted(name: str) -> Prediction:
        return find_predictor("roofline", name).predict(Workload(tiny_graph(), Target(find_device(name))))

    other, nvidia = predicted(device), predicted("a100")
    assert f"nothing was measured on any GPU of {maker}" in other.warnings[0]
    assert other.extrapolated
    assert other.device_memory_mib is None  # what nvidia-smi shows is none of its business
    assert other.latency_ms is not None
    assert nvidia.latency_ms is not None
    assert other.latency_ms.high / other.latency_ms.low > 2 * nvidia.latency_ms.high / nvidia.latency_ms.low
