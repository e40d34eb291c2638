"""Advisors: placement: on which device, slice and batch size to serve a model, ranked by cost.

A candidate is one prediction: a device, a slice of it, and a batch size. It is refused where it needs more memory than
there is (by the upper end of its interval, because a workload that does not fit fails), or where it takes longer than
allowed (by its value; where only the upper end exceeds the limit, it is marked as a risk). The remaining candidates are
ranked by dollars, energy or carbon of a million inferences: by the same number that is shown (`Choice.ranked`). A price
that leaves out the machine around the devices is a lower bound, so such an offer comes after all complete ones. For
each device or slice, the best batch size is listed.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from foretell.advisors.costs import Fleet, InferenceCost, fleet_for_rate, inference_cost
from foretell.errors import InputError
from foretell.readable import Readable, flat_row, spell
from foretell.records import Estimate, interval
from foretell.units import seconds_from_ms

Objective = Literal["usd", "energy", "carbon"]
OBJECTIVES: tuple[Objective, ...] = ("usd", "energy", "carbon")
_SHOWN = 5
_FIELDS = {
    "usd": "usd_per_million",
    "energy": "kwh_per_million",
    "carbon": "kg_co2e_per_million",
}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model on a device or a slice of it; so many ``copies`` of the slice fit on one device.

    With ``shared_by`` (``mps``) the copies share one device, and the latency is that of each beside the others.
    """

    device: str
    slice: str | None
    dtype: str
    batch_size: int
    latency_ms: Estimate
    need_mib: Estimate | None = None
    capacity_mib: float | None = None
    energy_j: Estimate | None = None
    power_w: Estimate | None = None
    copies: int = 1
    calibrated: bool = True
    shared_by: str | None = None

    @property
    def place(self) -> str:
        """Where the model runs, as text."""
        if self.shared_by is not None:
            return f"{self.device}, {self.copies} by {self.shared_by.upper()}"
        return f"{self.device} {self.slice}" if self.slice else self.device

    @property
    def items_per_s(self) -> Estimate:
        """What all copies on one device do."""
        return self.latency_ms.scaled(seconds_from_ms(1)).inverted(self.batch_size * self.copies)


@dataclass(frozen=True, slots=True)
class Offer:
    """An instance for rent with devices of one kind; None means unknown.

    ``incomplete`` is a price without the machine around the devices: what one would pay is more.
    """

    device: str
    name: str
    devices: int
    usd_per_h: float | None
    g_co2e_per_kwh: float | None = None
    pue: float | None = None
    note: str = ""
    incomplete: bool = False


@dataclass(frozen=True, slots=True)
class Requirements:
    """What the user requires; None means no limit."""

    slo_ms: float | None = None
    rate_per_s: float | None = None
    budget_usd_per_h: float | None = None
    max_batch: int | None = None
    utilisation: float = 0.7
    objective: Objective = "usd"

    def __post_init__(self) -> None:
        for name in ("slo_ms", "rate_per_s", "budget_usd_per_h", "max_batch"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"Got {name} = {value:g}; it must be above 0, or left out.")
        if self.objective not in OBJECTIVES:
            raise InputError(f"Cannot rank by {self.objective!r}; choose from {', '.join(OBJECTIVES)}.")


@dataclass(frozen=True, slots=True)
class Choice:
    """A place, a batch size and an instance; ``at_risk`` where the upper end of its latency exceeds the limit."""

    candidate: Candidate
    offer: Offer
    cost: InferenceCost
    fleet: Fleet | None
    objective: Objective
    at_risk: bool

    @property
    def ranked(self) -> Estimate | None:
        """What it is ranked by, which is what is shown; None where it is unknown."""
        estimate: Estimate | None = getattr(self, _FIELDS[self.objective])
        return estimate

    @property
    def value(self) -> float:
        """The value that it is ranked by; what is unknown comes last."""
        return math.inf if self.ranked is None else self.ranked.value

    @property
    def is_lower_bound(self) -> bool:
        """Whether it would cost more than it is ranked by: the price leaves out the machine."""
        return self.offer.incomplete and self.objective == "usd"

    @property
    def kg_co2e_per_million(self) -> Estimate | None:
        """Carbon of a million inferences."""
        return self.cost.kg_co2e_per_million

    @property
    def usd_per_million(self) -> Estimate | None:
        """Dollars for a million inferences: with a rate those of the whole instances, busy or not; else always busy."""
        return self.fleet.usd_per_million if self.fleet is not None else self.cost.usd_per_million

    @property
    def kwh_per_million(self) -> Estimate | None:
        """Energy of a million inferences with the data centre's share; where no PUE is known, of the devices alone."""
        return self.cost.kwh_per_million or self.cost.device_kwh_per_million

    @property
    def summary(self) -> str:
        """The instance, the latency and what a million items cost, in one line."""
        cost = self.usd_per_million
        usd = f", {spell(cost)} $ a million" if cost is not None else ""
        return f"{self.offer.name}: {spell(self.candidate.latency_ms)} ms{usd}{', at risk' if self.at_risk else ''}"

    def to_dict(self) -> dict[str, Any]:
        """Everything about the choice, quantities with their intervals; None where one is not known."""
        candidate, cost = self.candidate, self.cost
        return {
            "place": candidate.place, "device": candidate.device, "slice": candidate.slice, "dtype": candidate.dtype,
            "batch_size": candidate.batch_size, "instance": self.offer.name, "devices": self.offer.devices,
            "copies": candidate.copies, "shared_by": candidate.shared_by,
            "items_per_s": interval(candidate.items_per_s), "usd_per_h": self.offer.usd_per_h, "note": self.offer.note,
            "incomplete": self.offer.incomplete, "latency_ms": interval(candidate.latency_ms),
            "usd_per_million": interval(self.usd_per_million),
            "usd_per_million_if_busy": interval(cost.usd_per_million),
            "kwh_per_million": interval(self.kwh_per_million),
            "kg_co2e_per_million": interval(cost.kg_co2e_per_million),
            "instances": interval(self.fleet.instances if self.fleet else None), "at_risk": self.at_risk,
            "calibrated": candidate.calibrated, "unknown": dict(cost.unknown),
        }  # fmt: skip

    def to_row(self) -> dict[str, Any]:
        """The same, flat: the values of quantities without their intervals."""
        return flat_row(self.to_dict(), leave_out="unknown")


@dataclass(frozen=True, slots=True)
class Refused:
    """A place that does not meet the requirements, and why; without a ``kind``, the reason begins with it."""

    place: str
    reason: str
    kind: str = ""


def exclusions(refused: Iterable[Refused]) -> str:
    """What is excluded and why, in one line: how many places fail for each kind of reason, and one of them.

    >>> exclusions([Refused("t4", "price: unknown"), Refused("p4", "price: unknown"), Refused("l4", "slow", "latency")])
    'excluded: 2 by price (t4: unknown); 1 by latency (l4: slow)'
    """
    kinds: dict[str, list[tuple[str, str]]] = {}
    for one in refused:
        kind, _, rest = one.reason.partition(": ")
        kind, why = (one.kind, one.reason) if one.kind else (kind.removesuffix(":"), rest)
        kinds.setdefault(kind, []).append((one.place, why))
    parts = [f"{len(own)} by {kind} ({own[0][0]}: {own[0][1]})" for kind, own in kinds.items()]
    return f"excluded: {'; '.join(parts)}" if parts else ""


@dataclass(frozen=True, repr=False)
class Advice(Readable):
    """The choices, best first; the refused places; the Pareto front of latency and value; and what else to know."""

    choices: tuple[Choice, ...]
    refused: tuple[Refused, ...]
    front: tuple[Choice, ...] = field(default=())
    notes: tuple[str, ...] = ()
    objective: Objective = "usd"

    def heading(self) -> str:
        """How many choices there are."""
        return f"Advice: {len(self.choices)} choices, {len(self.refused)} places refused"

    def lines(self) -> Iterator[tuple[str, str]]:
        """The five best choices, then what is excluded and why."""
        for choice in self.choices[:_SHOWN]:
            yield f"{choice.candidate.place}, batch {choice.candidate.batch_size}", choice.summary
        if self.refused:
            yield "excluded", self.exclusions.removeprefix("excluded: ")
        yield from (("note", note) for note in self.notes)

    @property
    def exclusions(self) -> str:
        """What is excluded and why, in one line."""
        return exclusions(self.refused)

    def rows(self) -> list[dict[str, Any]]:
        """One flat row a choice, the best first."""
        return [choice.to_row() for choice in self.choices]

    def to_dict(self) -> dict[str, Any]:
        """The object that ``foretell advise --json`` prints."""
        return {
            "ranked_by": _FIELDS[self.objective],
            "choices": [choice.to_dict() for choice in self.choices],
            "front": [choice.to_dict() for choice in self.front],
            "refused": [{"place": refused.place, "reason": refused.reason} for refused in self.refused],
            "notes": list(self.notes),
        }


def place(candidates: Sequence[Candidate], offers: Sequence[Offer], requirements: Requirements) -> Advice:
    """Rank all candidates on all offers of their device; ties go to the lower latency, then to the smaller batch."""
    best: dict[tuple[str, str], Choice] = {}
    everything: list[Choice] = []
    refused: list[Refused] = []
    places = dict.fromkeys(candidate.place for candidate in candidates)
    for name in places:
        own = [candidate for candidate in candidates if candidate.place == name]
        possible, reason = _possible(own, requirements)
        ranked = [choice for candidate in possible for offer in offers if offer.device == candidate.device
                 if (choice := _choice(candidate, offer, requirements)) is not None]  # fmt: skip
        affordable = [choice for choice in ranked if _is_affordable(choice, requirements)]
        if not possible:
            refused.append(Refused(name, reason))
        elif not ranked:
            refused.append(Refused(name, _why_unranked(possible[0], offers, requirements)))
        elif not affordable:
            lowest = min((hourly for choice in ranked if (hourly := _usd_per_h(choice)) is not None), default=None)
            need = "an unknown price" if lowest is None else f"{lowest:.2f} $/h at least"
            refused.append(Refused(name, f"budget: {need}; {requirements.budget_usd_per_h:g} $/h are allowed"))
        for choice in affordable:
            # the Pareto front is over all batch sizes, not only the best one of each place
            everything.append(choice)
            key = name, choice.offer.name
            if key not in best or _order(choice) < _order(best[key]):
                best[key] = choice
    complete = [choice for choice in everything if not choice.is_lower_bound]
    ordered = tuple(sorted(best.values(), key=_order))
    return Advice(ordered, tuple(refused), pareto_front(complete), objective=requirements.objective)


def pareto_front(choices: Sequence[Choice]) -> tuple[Choice, ...]:
    """The choices that no other equals or beats in both latency and value, fastest first."""
    front: list[Choice] = []
    for choice in sorted(choices, key=lambda choice: (choice.candidate.latency_ms.value, choice.value)):
        # sorted by latency: a choice is on the front if it is cheaper than all faster ones
        if not front or choice.value < front[-1].value:
            front.append(choice)
    return tuple(front)


def _order(choice: Choice) -> tuple[bool, float, float, int, str, str]:
    candidate = choice.candidate
    return (
        choice.is_lower_bound,
        choice.value,
        candidate.latency_ms.value,
        candidate.batch_size,
        candidate.place,
        choice.offer.name,
    )


def _possible(candidates: Sequence[Candidate], requirements: Requirements) -> tuple[list[Candidate], str]:
    """The candidates of one place that meet the requirements, or else the reason why none does."""
    sized = [
        candidate
        for candidate in candidates
        if requirements.max_batch is None or candidate.batch_size <= requirements.max_batch
    ]
    if not sized:
        return [], f"batch: none of the batch sizes is at most {requirements.max_batch}"
    fitting = [candidate for candidate in sized if _fits(candidate)]
    if not fitting:
        smallest = min(sized, key=lambda candidate: candidate.batch_size)
        need = f"{smallest.need_mib.high:,.0f}" if smallest.need_mib else "?"
        return [], f"memory: batch {smallest.batch_size} may need {need} MiB of {smallest.capacity_mib or 0:,.0f}"
    fast = [
        candidate
        for candidate in fitting
        if requirements.slo_ms is None or candidate.latency_ms.value <= requirements.slo_ms
    ]
    if not fast:
        best = min(fitting, key=lambda candidate: candidate.latency_ms.value)
        return (
            [],
            f"latency: {best.latency_ms.value:.3g} ms at batch {best.batch_size}; "
            f"the limit is {requirements.slo_ms:g} ms",
        )
    return fast, ""


def _fits(candidate: Candidate) -> bool:
    """Whether the memory suffices; where it is unknown, assume so."""
    if candidate.need_mib is None or candidate.capacity_mib is None:
        return True
    return candidate.need_mib.high <= candidate.capacity_mib


def _choice(candidate: Candidate, offer: Offer, requirements: Requirements) -> Choice | None:
    """The candidate on an offer; None where the objective is unknown."""
    # one copy of the model on every slice of every device of the instance
    replicas = offer.devices * candidate.copies
    cost = inference_cost(
        candidate.latency_ms, candidate.batch_size, usd_per_h=offer.usd_per_h, replicas=replicas,
        energy_j=candidate.energy_j, power_w=candidate.power_w, pue=offer.pue, g_co2e_per_kwh=offer.g_co2e_per_kwh,
    )  # fmt: skip
    fleet = None
    if requirements.rate_per_s is not None:
        fleet = fleet_for_rate(
            requirements.rate_per_s, candidate.latency_ms, candidate.batch_size, utilisation=requirements.utilisation,
            replicas=replicas, usd_per_h=offer.usd_per_h,
        )  # fmt: skip
    at_risk = requirements.slo_ms is not None and candidate.latency_ms.high > requirements.slo_ms
    choice = Choice(candidate, offer, cost, fleet, requirements.objective, at_risk)
    return choice if choice.ranked is not None else None


def _is_affordable(choice: Choice, requirements: Requirements) -> bool:
    if requirements.budget_usd_per_h is None:
        return True
    hourly = _usd_per_h(choice)
    return hourly is not None and hourly <= requirements.budget_usd_per_h


def _usd_per_h(choice: Choice) -> float | None:
    """The price of all instances that the rate needs, or of one."""
    if choice.fleet is None:
        return choice.offer.usd_per_h
    return None if choice.fleet.usd_per_h is None else choice.fleet.usd_per_h.value


def _why_unranked(candidate: Candidate, offers: Sequence[Offer], requirements: Requirements) -> str:
    if not any(offer.device == candidate.device for offer in offers):
        return f"price: no known offer has a {candidate.device}"
    what = {"usd": "price", "energy": "energy", "carbon": "carbon"}[requirements.objective]
    return f"{what}: unknown for every instance with a {candidate.device}"
