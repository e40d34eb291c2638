"""The simulation of contention: what must hold for any jobs."""

import numpy as np
import pytest

from foretell.predictors.sharing.contention import Rules, simulate
from foretell.predictors.sharing.jobs import Job

RULES = Rules(least=0.02)


def job(kernel_us: float, fill: float, *, count: int = 16, traffic: float = 0.1, share: float = 1.0) -> Job:
    ones = np.ones(count)
    work_us, gap_us = kernel_us * 0.9 * ones, kernel_us * 0.1 * ones
    spread = min(1.0, 2 * fill)
    return Job(work_us, gap_us, fill * ones, spread * ones, traffic * ones, 0 * ones, kernel_us * count, count, share)


def test_two_jobs_that_fill_the_device_take_turns() -> None:
    one = job(10.0, 1.0)
    slowdown = simulate([[one, one]], RULES)[0]
    assert slowdown[:2] == pytest.approx(2.0, rel=0.2)


def test_jobs_that_leave_room_hardly_notice_each_other() -> None:
    slowdown = simulate([[job(10.0, 0.05), job(10.0, 0.05)]], RULES)[0]
    assert slowdown[:2].max() < 1.05


def test_short_kernels_wait_for_long_ones() -> None:
    short, long = simulate([[job(2.0, 1.0), job(50.0, 1.0)]], RULES)[0][:2]
    assert short > 4.0
    assert long < 1.5


def test_traffic_is_shared() -> None:
    streaming = job(10.0, 0.05, traffic=0.9)
    assert simulate([[streaming, streaming]], RULES)[0][0] > 1.5


def test_others_on_the_device_slow_down_what_fits_beside_them() -> None:
    small, large = job(10.0, 0.05), job(10.0, 0.5)
    free, crowded = (simulate([[small, large]], Rules(least=0.02, crowding=by))[0][0] for by in (0.0, 0.4))
    assert crowded > free + 0.1


def test_equal_jobs_are_slowed_down_equally() -> None:
    one, other = job(3.0, 0.7), job(20.0, 0.9)
    first, second, third = simulate([[one, other, one]], RULES)[0]
    assert first == third != second


def test_the_order_of_jobs_does_not_count() -> None:
    one, other = job(3.0, 0.7), job(20.0, 0.9)
    there, back = simulate([[one, other], [other, one]], RULES)[:, :2]
    assert there.tolist() == back[::-1].tolist()


@pytest.mark.parametrize("third", [job(1.0, 0.1), job(5.0, 1.0), job(80.0, 0.6)])
def test_a_third_job_helps_nobody(third: Job) -> None:
    one, other = job(3.0, 0.7), job(20.0, 0.9)
    pair, trio = simulate([[one, other], [one, other, third]], RULES)
    assert np.all(trio[:2] >= pair[:2] * 0.98)


def test_a_limit_of_the_other_frees_room() -> None:
    one, limited = job(3.0, 0.4), job(20.0, 1.0, share=0.5)
    free, held = simulate([[one, limited], [one, job(20.0, 1.0)]], RULES)[:, 0]
    assert free < held


def test_groups_do_not_disturb_each_other() -> None:
    one, other, more = job(3.0, 0.7), job(20.0, 0.9), job(7.0, 0.2)
    together = simulate([[one, other], [one, more]], RULES, starts=64, steps=600)
    alone = simulate([[one, other]], RULES, starts=64, steps=600)
    assert together[0] == pytest.approx(alone[0], rel=0.05)


def test_what_else_is_asked_changes_no_answer() -> None:
    asked = [job(10.0, 0.6), job(3.0, 0.4, traffic=0.5)]
    alone = simulate([asked], RULES)[0]
    together = simulate([[job(50.0, 1.0), job(2.0, 1.0), job(7.0, 0.3)], asked], RULES)[1]
    assert alone.tolist() == together.tolist()
