"""The same words everywhere."""

from dataclasses import replace

import pytest

from foretell.predictors import PREDICTORS
from foretell.records import METRICS, Estimate
from foretell.rendering.words import QUANTITIES, fit_sentence, source_of
from foretell.testing import tiny_onnx
from foretell.workflows.predict import predict


def test_every_metric_has_a_name_and_no_two_have_the_same() -> None:
    assert set(QUANTITIES) == set(METRICS)
    assert len({name for name, _ in QUANTITIES.values()}) == len(METRICS)


def test_every_predictor_is_explained() -> None:
    assert all("predicted by" not in source_of(name) for name in (*PREDICTORS, "adapted"))
    assert source_of("mine") == "predicted by mine"


@pytest.mark.parametrize(
    ("need", "said"),
    [
        (Estimate(1000, 900, 1100), "Fits on t4: about 1000 MiB of 14.7 GiB, up to 1.07 GiB."),
        (
            Estimate(14000, 13000, 16000),
            "Perhaps fits on t4: about 13.7 GiB of 14.7 GiB, between 12.7 GiB and 15.6 GiB;",
        ),
        (Estimate(20000, 18000, 22000), "Does not fit on t4: about 19.5 GiB of 14.7 GiB, at least 17.6 GiB;"),
    ],
)
def test_the_verdict_has_both_numbers(need: Estimate, said: str) -> None:
    prediction = replace(predict(tiny_onnx(), device="t4"), device_memory_mib=need)
    assert fit_sentence(prediction).startswith(said)


def test_what_is_not_known_is_not_said() -> None:
    prediction = predict(tiny_onnx(), device="t4")
    assert fit_sentence(replace(prediction, device_memory_mib=None, memory_mib=None)) == ""
