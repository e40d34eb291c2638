import pytest

from foretell.devices import find_device
from foretell.predictors import find_predictor
from foretell.predictors.options import with_options
from foretell.records import Target, Workload
from foretell.testing import tiny_graph

H200 = Target(find_device("h200"))


OPTIONS = [({"channels_last": True}, "channels-last"), ({"dtype": "tf32"}, "TF32")]


@pytest.mark.parametrize("name", ["roofline", "transfer"])
@pytest.mark.parametrize(("options", "named"), OPTIONS)
def test_an_option_that_was_not_fitted_gives_a_wide_interval_and_a_sentence(name, options, named):
    target = Target(find_device("a100"))
    predictor = find_predictor(name, target.device.id)
    plain, other = (predictor.predict(Workload(tiny_graph(), target, **more)) for more in ({}, options))
    assert not any(named in warning for warning in plain.warnings)
    assert sum(named in warning for warning in other.warnings) == 1
    assert other.latency_ms.high / other.latency_ms.low > 3.9 * min(plain.latency_ms.high / plain.latency_ms.low, 1.0)
    assert other.latency_ms.low < plain.latency_ms.value < other.latency_ms.high
    assert other.power_w.high <= target.device.tdp_w


@pytest.mark.parametrize(("options", "named"), OPTIONS)
def test_the_shipped_predictor_was_fitted_to_options(options, named):
    plain, other = (
        find_predictor(None, "h200").predict(Workload(tiny_graph(), H200, **more)) for more in ({}, options)
    )
    assert not any(named in warning for warning in other.warnings)
    assert other.latency_ms.value != plain.latency_ms.value


def test_a_fitted_option_changes_no_interval():
    workload = Workload(tiny_graph(), H200, "tf32", channels_last=True)
    prediction = find_predictor("roofline", "h200").predict(Workload(tiny_graph(), H200))
    answer = with_options(prediction, workload, ["tf32", "channels_last"])
    assert answer.latency_ms == prediction.latency_ms
    assert answer.warnings == prediction.warnings
    assert answer.to_dict()["channels_last"] is True
