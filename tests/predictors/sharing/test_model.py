"""The shipped model of sharing: what must hold whatever it was fitted to."""

from dataclasses import replace

import pytest

from foretell.errors import ModelError
from foretell.features import extract_units
from foretell.features.pooled import DistinctUnits
from foretell.predictors.sharing.jobs import Job
from foretell.predictors.sharing.model import SharingModel, shipped
from foretell.records import Estimate
from foretell.testing import tiny_onnx
from foretell.workflows.workload import choose_predictor, read_workload


@pytest.fixture(scope="module")
def model() -> SharingModel:
    found = shipped("h200")
    assert found is not None
    return found


@pytest.fixture(scope="module")
def jobs(model: SharingModel) -> list[Job]:
    """The same small network at three batch sizes: launches only, some work, much work."""
    described = []
    for batch_size in (1, 256, 8192):
        workload = read_workload(tiny_onnx(), device="h200", batch_size=batch_size)
        units = DistinctUnits.of(extract_units(workload))
        times_us = choose_predictor(None, workload.target).unit_times_us(workload, units)  # type: ignore[attr-defined]
        described.append(model.job(units.features, units.counts, times_us))
    return described


@pytest.fixture(scope="module")
def trio(model: SharingModel, jobs: list[Job]) -> tuple[Estimate, ...]:
    """The slowdowns of all three jobs together."""
    return tuple(model.slowdowns(jobs))


@pytest.fixture(scope="module")
def free(model: SharingModel, jobs: list[Job]) -> Estimate:
    """The slowdown of the second job beside the third, without limits."""
    return model.slowdowns([jobs[1], jobs[2]])[0]


def test_slowdowns_are_at_least_one_and_inside_their_intervals(trio: tuple[Estimate, ...]) -> None:
    for slowdown in trio:
        assert 1.0 <= slowdown.low <= slowdown.value <= slowdown.high


def test_equal_jobs_are_slowed_down_equally(model: SharingModel, jobs: list[Job]) -> None:
    one, other = model.slowdowns([jobs[2], jobs[2]])
    assert one == other


def test_the_order_of_jobs_does_not_count(model: SharingModel, jobs: list[Job], trio: tuple[Estimate, ...]) -> None:
    assert trio == tuple(model.slowdowns(jobs[::-1])[::-1])


def test_a_third_job_helps_nobody(model: SharingModel, jobs: list[Job], trio: tuple[Estimate, ...]) -> None:
    for pair, places in (((0, 1), (0, 1)), ((1, 2), (1, 2))):
        for slowdown, place in zip(model.slowdowns([jobs[one] for one in pair]), places, strict=True):
            assert trio[place].value >= slowdown.value


@pytest.mark.parametrize("share", [0.75, 0.5, 0.25, 0.1])
def test_a_limit_of_the_other_never_slows_a_job_down(
    model: SharingModel, jobs: list[Job], free: Estimate, share: float
) -> None:
    limited = model.slowdowns([jobs[1], replace(jobs[2], share=share)])[0]
    assert limited.value <= free.value


def test_time_slicing_gives_each_its_part_of_the_time_less_the_switching(model: SharingModel, jobs: list[Job]) -> None:
    for count in (2, 3):
        slowdowns = model.slowdowns(jobs[:count], "time-slicing")
        assert len(set(slowdowns)) == 1
        assert count < slowdowns[0].value < 1.3 * count


def test_damaged_files_are_refused() -> None:
    with pytest.raises(ModelError, match="not a fitted model of sharing"):
        SharingModel.load(b"nothing")
