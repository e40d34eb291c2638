"""The best place by brute force, limits, ties, and why others fell out."""

import itertools
import random

import pytest

from foretell.advisors.placement import Candidate, Offer, Wishes, pareto_front, place
from foretell.errors import InputError
from foretell.records import Estimate


def about(value: float, spread: float = 0.1) -> Estimate:
    return Estimate(value, value * (1 - spread), value * (1 + spread))


def candidate(device: str = "h200", batch: int = 1, ms: float = 1.0, **others: object) -> Candidate:
    return Candidate(device, others.pop("slice", None), "fp16", batch, about(ms), **others)  # type: ignore[arg-type]


def offer(device: str = "h200", usd: float | None = 4.0, **others: object) -> Offer:
    return Offer(device, others.pop("name", f"{device}-1"), others.pop("devices", 1), usd, **others)  # type: ignore[arg-type]


def test_the_best_is_that_of_brute_force() -> None:
    draw = random.Random(0)
    for _ in range(30):
        candidates = [
            candidate(
                device, batch, draw.uniform(0.5, 2) * batch**0.7, need_mib=about(draw.uniform(1, 20) * batch),
                capacity_mib=200.0, energy_j=about(draw.uniform(0.1, 1) * batch),
            )
            for device in "abc"
            for batch in (1, 2, 4, 8, 16)
        ]  # fmt: skip
        offers = [offer(device, draw.uniform(1, 8), name=f"{device}{n}", devices=n) for device in "abc" for n in (1, 8)]
        slo_ms = draw.uniform(1, 8)
        for objective in ("usd", "energy"):
            found = place(candidates, offers, Wishes(slo_ms=slo_ms, objective=objective))  # type: ignore[arg-type]
            values = []
            for each, rented in itertools.product(candidates, offers):
                fits = each.need_mib is not None and each.need_mib.high <= 200.0
                if each.device == rented.device and fits and each.latency_ms.value <= slo_ms:
                    assert rented.usd_per_h is not None
                    assert each.energy_j is not None
                    hours = each.latency_ms.value / 1e3 / 3600 * 1e6 / each.batch_size
                    usd = hours / rented.devices * rented.usd_per_h
                    values.append(usd if objective == "usd" else each.energy_j.value / each.batch_size * 1e6 / 3.6e6)
            assert [choice.value for choice in found.choices[:1]] == pytest.approx(sorted(values)[:1])
            assert [choice.value for choice in found.choices] == sorted(choice.value for choice in found.choices)


def test_memory_goes_by_the_upper_end_and_latency_by_its_value() -> None:
    tight = candidate(need_mib=Estimate(95, 90, 101), capacity_mib=100.0)
    found = place([tight], [offer()], Wishes())
    assert not found.choices
    assert found.refused[0].reason == "memory: batch 1 may need 101 MiB of 100"

    (choice,) = place([candidate(ms=9.5)], [offer()], Wishes(slo_ms=10)).choices
    assert choice.at_risk  # up to 10.45 ms
    late = place([candidate(ms=10.5), candidate(batch=2, ms=12)], [offer()], Wishes(slo_ms=10))
    assert late.refused[0].reason == "latency: 10.5 ms at batch 1; the limit is 10 ms"
    (equal,) = place([candidate(ms=10)], [offer()], Wishes(slo_ms=10)).choices
    assert equal.candidate.latency_ms.value == 10


def test_of_each_place_the_best_batch_is_kept_and_a_tie_goes_to_the_faster() -> None:
    batches = [candidate(batch=batch, ms=ms) for batch, ms in ((1, 1.0), (8, 4.0), (16, 8.0), (32, 40.0))]
    (choice,) = place(batches, [offer()], Wishes()).choices
    assert choice.candidate.batch_size == 8  # 16 costs the same and takes twice as long
    (small,) = place(batches, [offer()], Wishes(max_batch=4)).choices
    assert small.candidate.batch_size == 1
    none = place(batches[1:], [offer()], Wishes(max_batch=4))
    assert none.refused[0].reason == "batch: none of the batch sizes is at most 4"


def test_slices_share_a_device_and_its_price() -> None:
    whole, part = candidate(ms=1.0), candidate(ms=3.0, slice="mig:1g.18gb", copies=7)
    found = place([whole, part], [offer()], Wishes())
    assert [choice.candidate.place for choice in found.choices] == ["h200 mig:1g.18gb", "h200"]
    assert found.choices[0].value == pytest.approx(found.choices[1].value * 3 / 7)


def test_a_rate_needs_whole_instances_and_a_budget_holds_for_all_of_them() -> None:
    fast, cheap = candidate("a", ms=1.0), candidate("b", ms=10.0)
    offers = [offer("a", 10.0), offer("b", 0.5)]
    (first, second) = place([fast, cheap], offers, Wishes(rate_per_s=10, utilisation=1.0)).choices
    assert first.candidate.device == "b"
    assert first.fleet is not None
    assert second.fleet is not None
    assert (first.fleet.instances.value, second.fleet.instances.value) == (1, 1)
    busy = place([fast, cheap], offers, Wishes(rate_per_s=1000, utilisation=1.0, budget_usd_per_h=6.0))
    assert [choice.candidate.device for choice in busy.choices] == ["b"]  # ten of them at 5 $/h
    assert busy.refused[0].reason == "budget: 10.00 $/h at least; 6 $/h are allowed"


def test_what_is_unknown_is_said_and_not_ranked() -> None:
    found = place([candidate(), candidate("t4")], [offer("h200", None)], Wishes())
    assert {each.place: each.reason for each in found.refused} == {
        "h200": "usd: unknown for every instance with a h200",
        "t4": "price: nobody is known to rent out a t4",
    }
    carbon = place([candidate(energy_j=about(1.0))], [offer(g_co2e_per_kwh=300.0, pue=1.2)], Wishes(objective="carbon"))
    assert carbon.choices[0].value == pytest.approx(1e6 / 3.6e6 * 1.2 * 0.3)


def test_the_front_has_what_nothing_beats_in_both() -> None:
    candidates = [candidate(batch=batch, ms=ms) for batch, ms in ((1, 1.0), (2, 3.0), (8, 4.0), (16, 9.0))]
    found = place(candidates, [offer()], Wishes())
    assert [choice.candidate.batch_size for choice in found.front] == [1, 8]
    assert pareto_front([]) == ()


def test_wishes_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(InputError, match="slo_ms = -1"):
        Wishes(slo_ms=-1)
    with pytest.raises(InputError, match="rank by 'beauty'"):
        Wishes(objective="beauty")  # type: ignore[arg-type]


def test_with_a_rate_dollars_are_those_of_whole_instances_busy_or_not() -> None:
    """By the time it is busy `a` is the cheaper one, but a whole instance of it serves this rate at twice the price."""
    fast, slow = candidate("a", ms=1.0), candidate("b", ms=10.0)
    offers = [offer("a", 4.0), offer("b", 2.0)]
    busy = place([fast, slow], offers, Wishes()).choices
    assert [choice.candidate.device for choice in busy] == ["a", "b"]
    rated = place([fast, slow], offers, Wishes(rate_per_s=50)).choices
    assert [choice.candidate.device for choice in rated] == ["b", "a"]
    assert [choice.value for choice in rated] == pytest.approx([2.0 / (50 * 3600) * 1e6, 4.0 / (50 * 3600) * 1e6])
    energetic = [
        candidate(name, ms=ms, energy_j=about(joule)) for name, ms, joule in (("a", 1.0, 1.0), ("b", 10.0, 2.0))
    ]
    by_energy = place(energetic, offers, Wishes(rate_per_s=50, objective="energy")).choices
    assert [choice.candidate.device for choice in by_energy] == ["a", "b"], "energy is that of the work alone"


def test_the_front_has_one_of_equals() -> None:
    same = [candidate("a", ms=1.0), candidate("b", ms=1.0), candidate("c", batch=2, ms=2.0)]
    found = place(same, [offer(name, 4.0) for name in "abc"], Wishes())
    assert len(found.choices) == 3
    assert [choice.candidate.device for choice in found.front] == ["a"], "none of the others beats it in anything"
    cheaper = place(same, [offer("a", 4.0), offer("b", 3.0), offer("c", 4.0)], Wishes())
    assert [choice.candidate.device for choice in cheaper.front] == ["b"], "of two that take equally long the cheaper"
