import itertools

import pytest

from lab.campaigns.colocation_groups import (
    Candidate,
    draw_groups,
    group_id,
    intensity,
    overlap,
    share_out,
    strata,
    window_s,
)

CANDIDATES = [
    Candidate(f"{process}-{number}", process, cost, flops)
    for process in range(6)
    for number, (cost, flops) in enumerate(itertools.product((0.3, 2.0, 9.0), (5.0, 200.0)))
]


def test_members_are_in_different_processes_and_groups_are_different():
    groups = draw_groups(CANDIDATES, (2, 3), 100, 1)
    assert len({frozenset(member.workload_id for member in group) for group in groups}) == 100
    assert {len(group) for group in groups} == {2, 3}
    for group in groups:
        assert len({member.process for member in group}) == len(group)
    assert groups == draw_groups(CANDIDATES, (2, 3), 100, 1)
    assert groups != draw_groups(CANDIDATES, (2, 3), 100, 2)


def test_all_classes_meet_all_classes():
    pairs = draw_groups(CANDIDATES, (2,), 60, 1)
    classes = {member: key for key, members in strata(CANDIDATES).items() for member in members}
    assert len(strata(CANDIDATES)) == 6
    assert len({tuple(sorted(classes[member] for member in group)) for group in pairs}) == 21
    used = [member.workload_id for group in pairs for member in group]
    assert len({*used}) == len(CANDIDATES)
    assert max(used.count(name) for name in used) <= 8


def test_too_few_candidates_give_fewer_groups_and_end():
    assert draw_groups(CANDIDATES[:6], (2,), 5, 1) == []
    assert len(draw_groups([CANDIDATES[0], CANDIDATES[6]], (2, 3), 5, 1)) == 1
    assert draw_groups([], (2,), 5, 1) == []


def test_a_group_is_known_by_its_method_and_members():
    assert group_id("mps", ["a", "b"]) == group_id("mps", ["b", "a"])
    assert group_id("mps", ["a", "b"]) != group_id("time-slicing", ["a", "b"])
    assert group_id("mps", ["a", "b"]) != group_id("mps", ["a", "c"])


def test_only_replays_beside_all_others_count():
    steady = [100 + 0.01 * number for number in range(101)]  # 100 to 101 s
    late = [100.5 + 0.02 * number for number in range(101)]  # 100.5 to 102.5 s
    moments_by_member = overlap({0: steady, 1: late})
    assert moments_by_member[0].mean_ms == pytest.approx(10.0)
    assert moments_by_member[1].mean_ms == pytest.approx(20.0)
    assert moments_by_member[0].overlap_s == pytest.approx(0.49)
    assert 48 <= moments_by_member[0].repeats <= 49
    assert 23 <= moments_by_member[1].repeats <= 24


def test_mean_and_median_differ_for_a_member_that_is_stopped_at_times():
    gaps = [0.001] * 9 + [0.011]
    moments = [sum((gaps * 20)[:number]) for number in range(201)]
    timing = overlap({0: moments})[0]
    assert timing.median_ms == pytest.approx(1.0)
    assert timing.mean_ms == pytest.approx(2.0, rel=0.05)
    assert timing.cv > 1


def test_members_that_never_overlap_have_nothing_that_counts():
    assert overlap({0: [0.0, 1.0, 2.0], 1: [5.0, 6.0]}) == {0: None, 1: None}
    assert overlap({0: [1.0]}) == {0: None}


def test_slow_members_get_a_longer_window_but_not_any():
    assert window_s([10.0, 1.0], 0.3) == pytest.approx(0.3)
    assert window_s([12.0, 12.0, 12.0], 0.3) == pytest.approx(0.48)
    assert window_s([500.0, 1.0], 0.3) == 1.5


def test_processes_share_all_workloads_evenly():
    shares = share_out(10, 4, 1)
    assert sorted(itertools.chain(*shares)) == [*range(10)]
    assert {len(share) for share in shares} == {2, 3}


def test_intensity_is_operations_for_each_byte():
    values = {"macs": 600.0, "outputs": 50.0, "parameters": 150.0}
    assert intensity(values, "fp32") == 1.0
    assert intensity(values, "fp16") == 2.0
    assert intensity({"macs": 0.0, "outputs": 0.0, "parameters": 0.0}, "fp16") == 0.0
