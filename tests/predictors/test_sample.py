"""What predictors learn from: cannot be changed by who learns, and names what a prediction names."""

from dataclasses import FrozenInstanceError, fields

import pytest

from foretell.predictors.sample import TRUTHS
from foretell.records import Prediction
from small.small_samples import sample_of, workload


def test_every_truth_is_a_field_of_a_prediction() -> None:
    assert set(TRUTHS) <= {field.name for field in fields(Prediction)}
    assert len(set(TRUTHS)) == len(TRUTHS)


def test_a_sample_stays_as_it_was_measured() -> None:
    sample = sample_of(workload(), "tiny:w8")
    assert set(sample.truth) == set(TRUTHS)
    with pytest.raises(FrozenInstanceError):
        sample.captured = False  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        sample.setting.batch_size = 3  # type: ignore[misc]
