"""The best place by brute force, limits, ties, and why others fell out."""

import itertools
import random

import pytest

from foretell.advisors.placement import Candidate, Offer, Requirements, pareto_front, place
from foretell.errors import InputError
from foretell.records import Estimate


def about(value: float, spread: float = 0.1) -> Estimate:
    return Estimate(value, value * (1 - spread), value * (1 + spread))


def candidate(device: str = "h200", batch: int = 1, ms: float = 1.0, **others: object) -> Candidate:
    return Candidate(device, others.pop("slice", None), "fp16", batch, about(ms), **others)  # type: ignore[arg-type]


def offer(device: str = "h200", usd: float | None = 4.0, **others: object) -> Offer:
    return Offer(device, others.pop("name", f"{device}-1"), others.pop("devices", 1), usd, **others)  # type: ignore[arg-type]


def test_the_best_choice_is_that_of_a_brute_force_search() -> None:
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
            placement = place(candidates, offers, Requirements(slo_ms=slo_ms, objective=objective))  # type: ignore[arg-type]
            values = []
            for option, rented in itertools.product(candidates, offers):
                fits = option.need_mib is not None and option.need_mib.high <= 200.0
                if option.device == rented.device and fits and option.latency_ms.value <= slo_ms:
                    assert rented.usd_per_h is not None
                    assert option.energy_j is not None
                    hours = option.latency_ms.value / 1e3 / 3600 * 1e6 / option.batch_size
                    usd = hours / rented.devices * rented.usd_per_h
                    values.append(
                        usd if objective == "usd" else option.energy_j.value / option.batch_size * 1e6 / 3.6e6
                    )
            assert [choice.value for choice in placement.choices[:1]] == pytest.approx(sorted(values)[:1])
            assert [choice.value for choice in placement.choices] == sorted(
                choice.value for choice in placement.choices
            )


def test_memory_is_checked_at_its_upper_end_and_latency_at_its_value() -> None:
    tight = candidate(need_mib=Estimate(95, 90, 101), capacity_mib=100.0)
    placement = place([tight], [offer()], Requirements())
    assert not placement.choices
    assert placement.refused[0].reason == "memory: batch 1 may need 101 MiB of 100"

    (choice,) = place([candidate(ms=9.5)], [offer()], Requirements(slo_ms=10)).choices
    assert choice.at_risk  # up to 10.45 ms
    assert choice.summary == "h200-1: 9.5 (8.55 – 10.5) ms, 10.6 (9.5 – 11.6) $ a million, at risk"
    late = place([candidate(ms=10.5), candidate(batch=2, ms=12)], [offer()], Requirements(slo_ms=10))
    assert late.refused[0].reason == "latency: 10.5 ms at batch 1; the limit is 10 ms"
    (equal,) = place([candidate(ms=10)], [offer()], Requirements(slo_ms=10)).choices
    assert equal.candidate.latency_ms.value == 10


def test_each_place_keeps_its_best_batch_and_ties_go_to_the_faster() -> None:
    batches = [candidate(batch=batch, ms=ms) for batch, ms in ((1, 1.0), (8, 4.0), (16, 8.0), (32, 40.0))]
    (choice,) = place(batches, [offer()], Requirements()).choices
    assert choice.candidate.batch_size == 8  # 16 costs the same and takes twice as long
    (small,) = place(batches, [offer()], Requirements(max_batch=4)).choices
    assert small.candidate.batch_size == 1
    none = place(batches[1:], [offer()], Requirements(max_batch=4))
    assert none.refused[0].reason == "batch: none of the batch sizes is at most 4"


def test_slices_share_a_device_and_its_price() -> None:
    full_device, part = candidate(ms=1.0), candidate(ms=3.0, slice="mig:1g.18gb", copies=7)
    placement = place([full_device, part], [offer()], Requirements())
    assert [choice.candidate.place for choice in placement.choices] == ["h200 mig:1g.18gb", "h200"]
    assert placement.choices[0].value == pytest.approx(placement.choices[1].value * 3 / 7)


def test_a_rate_needs_whole_instances_and_a_budget_holds_for_all_of_them() -> None:
    fast, cheap = candidate("a", ms=1.0), candidate("b", ms=10.0)
    offers = [offer("a", 10.0), offer("b", 0.5)]
    (first, second) = place([fast, cheap], offers, Requirements(rate_per_s=10, utilisation=1.0)).choices
    assert first.candidate.device == "b"
    assert first.fleet is not None
    assert second.fleet is not None
    assert (first.fleet.instances.value, second.fleet.instances.value) == (1, 1)
    busy = place([fast, cheap], offers, Requirements(rate_per_s=1000, utilisation=1.0, budget_usd_per_h=6.0))
    assert [choice.candidate.device for choice in busy.choices] == ["b"]  # ten of them at 5 $/h
    assert busy.refused[0].reason == "budget: 10.00 $/h at least; 6 $/h are allowed"


def test_places_without_a_price_are_refused_and_not_ranked() -> None:
    placement = place([candidate(), candidate("t4")], [offer("h200", None)], Requirements())
    assert {refusal.place: refusal.reason for refusal in placement.refused} == {
        "h200": "price: unknown for every instance with a h200",
        "t4": "price: no known offer has a t4",
    }
    both = place([candidate(), candidate("t4")], [offer("h200", None), offer("t4", None)], Requirements())
    assert [refusal.reason.split(":")[0] for refusal in both.refused] == ["price", "price"], (
        "one offer is enough to know it"
    )
    carbon = place(
        [candidate(energy_j=about(1.0))], [offer(g_co2e_per_kwh=300.0, pue=1.2)], Requirements(objective="carbon")
    )
    assert carbon.choices[0].value == pytest.approx(1e6 / 3.6e6 * 1.2 * 0.3)


def test_the_front_has_choices_that_nothing_beats_in_latency_and_cost() -> None:
    candidates = [candidate(batch=batch, ms=ms) for batch, ms in ((1, 1.0), (2, 3.0), (8, 4.0), (16, 9.0))]
    placement = place(candidates, [offer()], Requirements())
    assert [choice.candidate.batch_size for choice in placement.front] == [1, 8]
    assert pareto_front([]) == ()


def test_impossible_requirements_are_refused() -> None:
    with pytest.raises(InputError, match="slo_ms = -1"):
        Requirements(slo_ms=-1)
    with pytest.raises(InputError, match="rank by 'beauty'"):
        Requirements(objective="beauty")  # type: ignore[arg-type]


def test_with_a_rate_dollars_are_those_of_whole_instances_busy_or_not() -> None:
    """By the time it is busy `a` is the cheaper one, but a whole instance of it serves this rate at twice the price."""
    fast, slow = candidate("a", ms=1.0), candidate("b", ms=10.0)
    offers = [offer("a", 4.0), offer("b", 2.0)]
    busy = place([fast, slow], offers, Requirements()).choices
    assert [choice.candidate.device for choice in busy] == ["a", "b"]
    rated = place([fast, slow], offers, Requirements(rate_per_s=50)).choices
    assert [choice.candidate.device for choice in rated] == ["b", "a"]
    assert [choice.value for choice in rated] == pytest.approx([2.0 / (50 * 3600) * 1e6, 4.0 / (50 * 3600) * 1e6])
    energetic = [
        candidate(name, ms=ms, energy_j=about(joule)) for name, ms, joule in (("a", 1.0, 1.0), ("b", 10.0, 2.0))
    ]
    by_energy = place(energetic, offers, Requirements(rate_per_s=50, objective="energy")).choices
    assert [choice.candidate.device for choice in by_energy] == ["a", "b"], "energy is that of the work alone"


def test_the_front_has_one_of_equals() -> None:
    same = [candidate("a", ms=1.0), candidate("b", ms=1.0), candidate("c", batch=2, ms=2.0)]
    placement = place(same, [offer(name, 4.0) for name in "abc"], Requirements())
    assert len(placement.choices) == 3
    assert [choice.candidate.device for choice in placement.front] == ["a"], "none of the others beats it in anything"
    cheaper = place(same, [offer("a", 4.0), offer("b", 3.0), offer("c", 4.0)], Requirements())
    assert [choice.candidate.device for choice in cheaper.front] == ["b"], "of two that take equally long the cheaper"


def test_requirements_at_their_limits_are_allowed() -> None:
    for name in ("slo_ms", "rate_per_s", "budget_usd_per_h", "max_batch"):
        with pytest.raises(InputError, match=f"Got {name} = 0; it must be above 0, or left out"):
            Requirements(**{name: 0})
        assert getattr(Requirements(**{name: 1}), name) == 1
    assert Requirements() == Requirements(None, None, None, None, 0.7, "usd")


def test_an_exact_fit_is_accepted_and_so_is_unknown_memory() -> None:
    for need, capacity in ((Estimate(90, 80, 100), 100.0), (None, 1.0), (Estimate(90, 80, 100), None)):
        assert place([candidate(need_mib=need, capacity_mib=capacity)], [offer()], Requirements()).choices
    placement = place([candidate(batch=4, need_mib=Estimate(1500, 1400, 1600), capacity_mib=1000.0),
                   candidate(batch=2, need_mib=Estimate(1100, 1000, 1200), capacity_mib=1000.0)],
                  [offer()], Requirements())  # fmt: skip
    assert placement.refused[0].reason == "memory: batch 2 may need 1,200 MiB of 1,000"


def test_batches_up_to_the_largest_allowed() -> None:
    batches = [candidate(batch=batch, ms=1.0) for batch in (1, 2, 4)]
    (choice,) = place(batches, [offer()], Requirements(max_batch=2)).choices
    assert choice.candidate.batch_size == 2


def test_the_fastest_batch_is_named_where_all_are_too_slow() -> None:
    slow = [candidate(batch=8, ms=30.0), candidate(batch=1, ms=20.0), candidate(batch=2, ms=25.0)]
    placement = place(slow, [offer()], Requirements(slo_ms=10))
    assert placement.refused[0].reason == "latency: 20 ms at batch 1; the limit is 10 ms"
    assert not placement.choices
    assert placement.front == ()


def test_a_choice_is_at_risk_only_beyond_the_limit() -> None:
    def at_risk(slo_ms: float | None) -> bool:
        (choice,) = place(
            [Candidate("h200", None, "fp16", 1, Estimate(9, 8, 10))], [offer()], Requirements(slo_ms)
        ).choices
        return choice.at_risk

    assert (at_risk(None), at_risk(10), at_risk(9.9)) == (False, False, True)


def test_ties_go_to_the_faster_then_to_the_smaller_batch_then_by_name() -> None:
    def first(*candidates: Candidate, offers: tuple[Offer, ...]) -> tuple[str, int, str]:
        choice = place(candidates, offers, Requirements(objective="energy")).choices[0]
        return choice.candidate.place, choice.candidate.batch_size, choice.offer.name

    one = about(1.0)
    faster = candidate("b", ms=1.0, energy_j=one), candidate("a", ms=2.0, energy_j=one)
    assert first(*faster, offers=(offer("a"), offer("b"))) == ("b", 1, "b-1")
    smaller = candidate("a", 2, 1.0, energy_j=about(2.0)), candidate("b", 1, 1.0, energy_j=one)
    assert first(*smaller, offers=(offer("a"), offer("b"))) == ("b", 1, "b-1")
    named = candidate("b", energy_j=one), candidate("a", energy_j=one)
    assert first(*named, offers=(offer("b"), offer("a"))) == ("a", 1, "a-1")
    rented = offer("a", name="z"), offer("a", name="m")
    assert first(candidate("a", energy_j=one), offers=rented) == ("a", 1, "m")


def test_of_each_place_and_instance_one_choice_is_kept() -> None:
    candidates = [candidate(batch=batch, ms=ms) for batch, ms in ((1, 1.0), (4, 2.0))]
    offers = [offer(usd=4.0, name="one"), offer(usd=20.0, name="eight", devices=8), offer("other", name="none")]
    placement = place(candidates, offers, Requirements())
    assert [(c.offer.name, c.candidate.batch_size) for c in placement.choices] == [("eight", 4), ("one", 4)]
    assert placement.choices[0].value == pytest.approx(20.0 / 8 * 2.0 / 4 / 3.6)
    assert placement.choices[0].fleet is None
    assert [(c.offer.name, c.candidate.batch_size) for c in placement.front] == [("eight", 1), ("eight", 4)]


def test_a_fleet_counts_copies_and_the_share_of_time_it_may_be_busy() -> None:
    part = candidate(ms=10.0, slice="mig:1g.18gb", copies=7)

    def instances(**requirements: float) -> float:
        (choice,) = place([part], [offer(devices=2)], Requirements(rate_per_s=2800, **requirements)).choices
        assert choice.fleet is not None
        return choice.fleet.instances.value

    assert instances(utilisation=1.0) == 2  # 14 copies of 100 a second each
    assert instances(utilisation=0.5) == 4
    assert instances() == 3  # 0.7


@pytest.mark.parametrize(("budget", "chosen"), [(3.99, 0), (4.0, 1), (5.0, 1)])
def test_a_budget_that_is_met_exactly_is_met(budget: float, chosen: int) -> None:
    placement = place(
        [candidate()], [offer(usd=4.0), offer(usd=9.0, name="dear")], Requirements(budget_usd_per_h=budget)
    )
    assert len(placement.choices) == chosen
    if not chosen:
        assert placement.refused[0].reason == "budget: 4.00 $/h at least; 3.99 $/h are allowed"


def test_an_unknown_price_does_not_meet_a_budget() -> None:
    requirements = Requirements(budget_usd_per_h=5.0, objective="energy")
    placement = place([candidate(energy_j=about(1.0))], [offer(usd=None)], requirements)
    assert placement.refused[0].reason == "budget: an unknown price; 5 $/h are allowed"
    rated = place([candidate(energy_j=about(1.0))], [offer(usd=None)], Requirements(rate_per_s=1, objective="energy"))
    assert len(rated.choices) == 1
    busy = place([candidate(energy_j=about(1.0))], [offer(usd=None)], Requirements(None, 1.0, 5.0, objective="energy"))
    assert busy.refused[0].reason == "budget: an unknown price; 5 $/h are allowed"


def test_energy_is_power_times_latency_where_it_is_not_predicted() -> None:
    placement = place([candidate(ms=36.0, batch=10, power_w=about(250.0))], [offer()], Requirements(objective="energy"))
    assert placement.choices[0].value == pytest.approx(0.25)
    nothing = place([candidate()], [offer()], Requirements(objective="energy"))
    assert nothing.refused[0].reason == "energy: unknown for every instance with a h200"
    no_grid = place([candidate(energy_j=about(1.0))], [offer(pue=1.1)], Requirements(objective="carbon"))
    assert no_grid.refused[0].reason == "carbon: unknown for every instance with a h200"
