"""Slowdowns for a cluster: as `share` predicts them, each group once, and a rule where nothing is known."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import pytest

import foretell
from foretell.devices import find_device, parse_slice
from foretell.predictors.sharing.model import TimeSlices
from foretell.scheduling import Contention, Demand, PlaceKind, Profile
from foretell.testing import tiny_onnx
from foretell.workflows.sharing import group_slowdowns
from foretell.workflows.sharing.group_slowdowns import GroupSlowdowns, MeasuredDevice
from foretell.workflows.sharing.launches import describe_launches, measured_model
from foretell.workflows.workload import load_graph, read_configuration

H200 = find_device("h200")
MPS = PlaceKind("h200, mps", H200, None, "mps", 4)
TURNS = PlaceKind("h200, time-slicing", H200, None, "time-slicing", 4)


@dataclass(frozen=True)
class FakeJob:
    """A job that adds ``weight`` to the time of every other one."""

    weight: float
    share: float = 1.0

    @property
    def digest(self) -> str:
        return f"{self.weight} {self.share}"


class FakeModel:
    """In a pair ``1 + weight of the other``; limits of others double that, as no real model would say."""

    time_slices = (TimeSlices(2, 2.2, 0.01), TimeSlices(3, 3.3, 0.02))

    def __init__(self) -> None:
        self.calls: list[int] = []

    def mps_logs(self, groups: Sequence[Sequence[FakeJob]]) -> list[list[float]]:
        self.calls.append(len(groups))
        return [
            [
                math.log(1 + sum(o.weight * (2 if o.share < 1 else 1) for at, o in enumerate(group) if at != one))
                for one in range(len(group))
            ]
            for group in groups
        ]

    def width(self, log: float) -> float:
        return log / 2


def profiles(count: int, **numbers: float) -> list[Profile]:
    demands = {kind.name: Demand(10.0, **numbers) for kind in (MPS, TURNS)}
    return [Profile(number, f"p{number}", demands) for number in range(count)]


def fake(jobs: Sequence[FakeJob]) -> tuple[GroupSlowdowns, FakeModel]:
    model = FakeModel()
    launches = {(MPS.name, number): job for number, job in enumerate(jobs)}
    return GroupSlowdowns({"h200": MeasuredDevice(model, launches)}, Contention()), model  # type: ignore[arg-type]


def test_a_group_is_slowed_down_as_share_says() -> None:
    model = measured_model(H200)
    graph = load_graph(tiny_onnx())
    sizes, parts = (4, 64), (30.0, 70.0)
    expected = foretell.share([tiny_onnx()] * 2, batch_sizes=sizes, dtypes="fp16", percentages=parts)
    jobs = [
        describe_launches(model, read_configuration(device=H200, batch_size=size, dtype="fp16").workload(graph), part)
        for size, part in zip(sizes, parts, strict=True)
    ]
    launches = {(MPS.name, number): job for number, job in enumerate(jobs)}
    slowdowns = GroupSlowdowns({"h200": MeasuredDevice(model, launches)}, Contention())
    one, two = profiles(2)
    assert slowdowns(MPS, [one, two]) == pytest.approx([job.slowdown.value for job in expected.jobs], rel=0.02)
    assert slowdowns(MPS, [two, one]) == pytest.approx([job.slowdown.value for job in expected.jobs][::-1], rel=0.02)
    assert not slowdowns.by_rule


def test_groups_of_equal_jobs_are_predicted_once_and_many_at_a_time() -> None:
    jobs = [FakeJob(0.1 * (number % 12)) for number in range(24)]  # every job twice
    slowdowns, model = fake(jobs)
    members = profiles(24)
    for pair in combinations_with_replacement(members, 2):
        expected = [1 + jobs[other.number].weight for other in reversed(pair)]
        assert slowdowns(MPS, pair) == pytest.approx(expected)
        assert slowdowns(MPS, pair[::-1]) == pytest.approx(expected[::-1])
    assert slowdowns.asked == 78  # pairs of 12 different jobs
    assert len(model.calls) == 1


def test_trios_beyond_the_limit_and_larger_groups_add_up_their_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_slowdowns, "_MOST", {2: 100, 3: 0})
    slowdowns, _ = fake([FakeJob(0.1), FakeJob(0.2), FakeJob(0.4), FakeJob(0.8)])
    assert not slowdowns.summed
    members = profiles(4)
    assert slowdowns(MPS, members[:3]) == pytest.approx([1.6, 1.5, 1.3])
    assert slowdowns(MPS, members) == pytest.approx([2.4, 2.3, 2.1, 1.7])
    assert slowdowns.summed


def test_too_many_pairs_are_left_to_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_slowdowns, "_MOST", {2: 1})
    slowdowns, _ = fake([FakeJob(0.1), FakeJob(0.2), FakeJob(0.4)])
    one, two, three = profiles(3, sm_share=0.8)
    assert slowdowns(MPS, [one, two]) == pytest.approx([1.2, 1.1])
    assert slowdowns(MPS, [one, three]) == pytest.approx([1.6, 1.6])
    assert list(slowdowns.by_rule) == ["p0", "p2"]


def test_whoever_has_no_launches_gets_the_rule_and_is_named() -> None:
    slowdowns, _ = fake([FakeJob(0.1)])
    known, unknown = profiles(2, sm_share=0.8)
    assert slowdowns(MPS, [known, known]) == pytest.approx([1.1, 1.1])
    assert not slowdowns.by_rule
    assert slowdowns(MPS, [known, unknown]) == Contention()(MPS, [known, unknown]) == pytest.approx([1.6, 1.6])
    assert slowdowns.margins(MPS, [known, unknown]) == [0.15, 0.15]
    assert list(slowdowns.by_rule) == ["p1"]


@pytest.mark.parametrize(
    "kind",
    [
        PlaceKind("h200 mig:3g.71gb, mps", H200, parse_slice("mig:3g.71gb", H200), "mps", 2),
        PlaceKind("a100-sxm-40gb, mps", find_device("a100"), None, "mps", 2),
    ],
)
def test_slices_and_devices_that_nobody_measured_get_the_rule(kind: PlaceKind) -> None:
    slowdowns, model = fake([FakeJob(0.1)])
    one = Profile(0, "p0", {kind.name: Demand(10.0, sm_share=0.8)})
    assert slowdowns(kind, [one, one]) == pytest.approx([1.6, 1.6])
    assert not model.calls
    assert list(slowdowns.by_rule) == ["p0"]


def test_turns_are_as_measured_while_nobody_pauses() -> None:
    slowdowns, model = fake([])
    assert slowdowns(TURNS, profiles(2)) == pytest.approx([2.2, 2.2])
    assert slowdowns(TURNS, profiles(3)) == pytest.approx([3.3] * 3)
    for members in (profiles(2, utilisation=0.5), profiles(4)):
        assert slowdowns(TURNS, members) == Contention()(TURNS, members)
    assert not slowdowns.by_rule  # the rule for turns was made from measurements
    assert not model.calls


def test_limits_of_the_others_never_slow_a_job_down() -> None:
    slowdowns, _ = fake([FakeJob(0.1, share=0.5), FakeJob(0.2)])
    # the model alone would say 1.2 for the second, because of the limit of the first
    assert slowdowns(MPS, profiles(2)) == pytest.approx([1.2, 1.1])


def test_the_margin_comes_from_the_interval() -> None:
    slowdowns, _ = fake([FakeJob(0.1), FakeJob(0.9)])
    small, large = profiles(2)
    beside_large, beside_small = slowdowns.margins(MPS, [small, large])
    assert beside_large == pytest.approx(1.9**0.3 - 1)  # 0.6 of half the logarithm
    assert 0 < beside_small < beside_large


def test_nobody_slows_down_a_job_that_is_alone() -> None:
    slowdowns, _ = fake([])
    (one,) = profiles(1)
    alone = PlaceKind("h200", H200, None, "exclusive", 1)
    assert list(slowdowns(MPS, [one])) == list(slowdowns(alone, [one])) == [1.0]
    assert list(slowdowns.margins(MPS, [one])) == [0.0]
