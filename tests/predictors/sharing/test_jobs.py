"""A workload as a job: its launches, and the time that they take."""

import numpy as np
import pytest

from foretell.features.units import COLUMNS
from foretell.predictors.sharing.jobs import MAX_LAUNCHES, MPS_LAUNCH_US, describe_job
from foretell.predictors.sharing.launches import UnitFills


def features(count: int) -> np.ndarray:
    return np.zeros((count, len(COLUMNS)), np.float32)


def held(kernels: list[int], longest: float = 1.0) -> UnitFills:
    count = len(kernels)
    return UnitFills(np.full(count, 0.5), np.full(count, 0.8), np.full(count, longest), np.array(kernels, float))


def test_a_job_has_every_launch_once_and_their_time() -> None:
    job = describe_job(features(2), np.array([2.0, 1.0]), np.array([10.0, 30.0]), held([1, 3], longest=0.5))
    alone_us = job.work_us + job.gap_us - MPS_LAUNCH_US
    assert sorted(alone_us.round(6).tolist()) == [7.5, 7.5, 10.0, 10.0, 15.0]
    assert (job.time_us, job.launches) == (50.0, 5.0)
    assert job.mps_ms == pytest.approx(5 * MPS_LAUNCH_US / 1000)


def test_a_long_job_is_sampled_with_its_mean_kernel() -> None:
    job = describe_job(features(2), np.array([9000.0, 1000.0]), np.array([2.0, 20.0]), held([1, 1]))
    assert len(job.work_us) == MAX_LAUNCHES
    assert float(np.mean(job.work_us + job.gap_us)) == pytest.approx(3.8 + MPS_LAUNCH_US, rel=0.02)


def test_equal_jobs_have_equal_digests_and_a_limit_makes_another_job() -> None:
    arguments = features(2), np.array([2.0, 1.0]), np.array([10.0, 30.0]), held([1, 3])
    assert describe_job(*arguments).digest == describe_job(*arguments).digest
    assert describe_job(*arguments, 0.5).digest != describe_job(*arguments).digest
