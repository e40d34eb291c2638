"""Workflows: where to serve a language model: GPUs, precision and concurrency that keep limits at the least cost.

Every GPU that somebody rents out is tried in each precision, divided over 1, 2, 4 and 8 GPUs. Of each, the largest
concurrency is sought that keeps the limits of the first token and of a token: more requests at a time make tokens
cheaper and slower. It is sought among powers of two and their halves between, by the predicted values; where only the
upper end of an interval breaks a limit, the choice is marked. Once twice the GPUs make a token a third dearer, more
are not tried. Replicas serve a rate: so many that each has the requests it can keep up with.

Limits: no pipelines and no experts over more GPUs than the tensors; one machine a copy; a steady load.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from foretell.advisors.placement import OBJECTIVES, Objective, Offer, Refused, exclusions
from foretell.devices import Device
from foretell.errors import DeviceError, InputError
from foretell.predictors.llm.architecture import Architecture, load_architecture
from foretell.predictors.llm.deployment import MEMORY_FRACTION, Deployment
from foretell.predictors.llm.engines import EAGER, ENGINES, PAGED, Engine, shipped_engines
from foretell.predictors.llm.kernels import shipped_kernels
from foretell.predictors.llm.placement import WEIGHTS, Precision, choose_precision
from foretell.predictors.llm.serving import Load, steady_load
from foretell.predictors.llm.steps import Steps
from foretell.readable import Readable, flat_row, spell
from foretell.records import Estimate
from foretell.registry import did_you_mean
from foretell.units import MEGA
from foretell.workflows.advise import Renting, considered, find_offers
from foretell.workflows.llm import LlmPrediction, check_numbers, gpus_together, served
from foretell.workflows.sweep import ALL

AS_PUBLISHED = "published"
_SIZES = (1, 2, 4, 8)
_MOST_CLIENTS = 512
_DEARER = 4 / 3
_SHOWN = 5
_MACHINE = "machine"  # no machine has so many GPUs: more of them are not tried
_SECONDS_PER_H = 3600
_FIELDS = {"usd": "usd_per_million_tokens", "energy": "energy_j_per_token", "carbon": "gco2_per_thousand_tokens"}


@dataclass(frozen=True, slots=True)
class LlmLimits:
    """What the load must keep, in ms; None is no limit. ``rate_per_s`` requests must be served, for ``budget`` $/h."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    rate_per_s: float | None = None
    budget_usd_per_h: float | None = None

    def __post_init__(self) -> None:
        for name in ("ttft_ms", "tpot_ms", "rate_per_s", "budget_usd_per_h"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"Got {name} = {value:g}; it must be above 0, or left out.")

    def broken_by(self, load: Load) -> str | None:
        """What a load breaks, in words; None where it keeps all limits."""
        if self.ttft_ms is not None and load.ttft_ms > self.ttft_ms:
            return f"the first token comes after {load.ttft_ms:,.0f} ms; the limit is {self.ttft_ms:g} ms"
        if self.tpot_ms is not None and load.tpot_ms > self.tpot_ms:
            return f"a token takes {load.tpot_ms:,.1f} ms; the limit is {self.tpot_ms:g} ms"
        return None


@dataclass(frozen=True, slots=True)
class LlmChoice:
    """A deployment on rented machines: ``copies`` of the model on ``instances`` machines for ``usd_per_h`` in all.

    ``prediction`` is of one copy with as many requests in flight as it may have.
    """

    prediction: LlmPrediction
    instance: str
    copies: int
    instances: int
    usd_per_h: float
    usd_per_million_tokens: Estimate
    at_risk: bool

    @property
    def place(self) -> str:
        """The GPUs and the precision of one copy."""
        one = self.prediction
        return f"{one.gpus} × {one.device}, {one.weights}"

    def to_dict(self) -> dict[str, Any]:
        """The choice with the whole prediction of a copy."""
        own = {
            "place": self.place, "instance": self.instance, "copies": self.copies, "instances": self.instances,
            "usd_per_h": self.usd_per_h, "usd_per_million_tokens": self.usd_per_million_tokens.to_dict(),
            "at_risk": self.at_risk,
        }  # fmt: skip
        return {**self.prediction.to_dict(), **own}


@dataclass(frozen=True, repr=False)
class LlmAdvice(Readable):
    """The choices, best first, and what was refused with its reason."""

    model: str
    input_tokens: int
    output_tokens: int
    choices: tuple[LlmChoice, ...]
    refused: tuple[Refused, ...]

    def heading(self) -> str:
        """The best choice in one line."""
        if not self.choices:
            return f"{self.model}: no place keeps the limits"
        best = self.choices[0]
        copies = f", {best.copies} copies" if best.copies > 1 else ""
        return f"{self.model}: {best.place}, {best.prediction.concurrency} requests at a time{copies} ({best.instance})"

    def lines(self) -> Iterator[tuple[str, str]]:
        """The five best."""
        for choice in self.choices[:_SHOWN]:
            one = choice.prediction
            assert one.ttft_ms is not None
            cost, first = spell(choice.usd_per_million_tokens), spell(one.ttft_ms)
            token = "" if one.tpot_ms is None else f", {spell(one.tpot_ms)} ms a token"
            yield choice.place, f"{cost} $ a million tokens, first token {first} ms{token}"

    @property
    def exclusions(self) -> str:
        """What is excluded and why, in one line."""
        return exclusions(self.refused)

    def rows(self) -> list[dict[str, Any]]:
        """One flat row for each choice."""
        return [flat_row(choice.to_dict(), leave_out="warnings") for choice in self.choices]

    def to_dict(self) -> dict[str, Any]:
        """The object that ``foretell advise --llm --json`` prints."""
        return {
            "model": self.model, "input_tokens": self.input_tokens, "output_tokens": self.output_tokens,
            "choices": [choice.to_dict() for choice in self.choices],
            "refused": [{"place": one.place, "reason": one.reason, "kind": one.kind} for one in self.refused],
        }  # fmt: skip


def advise_llm(
    model: str,
    *,
    input_tokens: int,
    output_tokens: int,
    ttft_ms: float | None = None,
    tpot_ms: float | None = None,
    rate: float | None = None,
    budget: float | None = None,
    by: Objective = "usd",
    weights: Sequence[str] = (AS_PUBLISHED, "fp8", "int4"),
    kv_dtype: str | None = None,
    engine: str = PAGED,
    devices: Sequence[str | Device] = (ALL,),
    renting: Renting | None = None,
    memory_fraction: float = MEMORY_FRACTION,
    progress: Callable[[str], None] = lambda _: None,
) -> LlmAdvice:
    """Find the GPUs, their number, the precision and the concurrency that serve a language model best.

    Args:
        model: A name such as ``meta-llama/Llama-3.1-8B``, a config.json, or a folder with one.
        input_tokens: Tokens of a prompt.
        output_tokens: Tokens of an answer.
        ttft_ms: The longest time to a first token, on average.
        tpot_ms: The longest time between tokens, on average.
        rate: Requests a second of all copies.
        budget: Dollars an hour for all instances.
        by: Rank by ``usd``, ``energy`` or ``carbon`` of a token.
        weights: Precisions to try; ``published`` is that of the checkpoint.
        kv_dtype: bf16 or fp8, of the cache.
        engine: paged, vllm, sglang or trtllm.
        devices: Names from the catalogue; ``all`` means every GPU that a price is known for.
        renting: Where to look for instances.
        memory_fraction: The share of a GPU's memory that the engine takes.
        progress: Called with the name of each GPU before it is tried.

    >>> advice = advise_llm("meta-llama/Llama-3.1-8B", input_tokens=512, output_tokens=128, tpot_ms=40,
    ...     devices=["l40s"], weights=["fp8"])
    >>> advice.choices[0].prediction.gpus, advice.choices[0].prediction.tpot_ms.value < 40
    (1, True)
    """
    check_numbers(input_tokens, output_tokens, 1, memory_fraction)
    limits, renting = LlmLimits(ttft_ms, tpot_ms, rate, budget), renting or Renting()
    _check(by, weights, engine)
    architecture = load_architecture(model)
    if input_tokens + output_tokens > architecture.context:
        raise InputError(
            f"{input_tokens:,} + {output_tokens:,} tokens are more than the context of {architecture.name}; "
            f"together they may be at most {architecture.context:,}."
        )
    search = _Search(
        architecture, (input_tokens, output_tokens), limits, shipped_engines().engine(engine), memory_fraction
    )
    choices: list[LlmChoice] = []
    refused: list[Refused] = []
    for device in considered(devices, renting)[0]:
        progress(device.id)
        offers = [offer for offer in find_offers([device], renting) if offer.usd_per_h is not None]
        if not offers:
            refused.append(Refused(device.id, "no price is known", "price"))
            continue
        for precision in _precisions(architecture, device, weights, kv_dtype, refused):
            found, reasons = search.on(device, precision, offers)
            choices += found
            refused += reasons
    ordered = sorted(choices, key=lambda choice: _rank(choice, by))
    return LlmAdvice(architecture.name, input_tokens, output_tokens, tuple(ordered), tuple(refused))


def _check(by: str, weights: Sequence[str], engine: str) -> None:
    if by not in OBJECTIVES:
        raise InputError(f"Cannot rank by {by!r}; choose from {', '.join(OBJECTIVES)}.")
    allowed = (AS_PUBLISHED, *WEIGHTS)
    for name in weights:
        if name not in allowed:
            raise InputError(f"Unknown weights {name!r}.{did_you_mean(name, allowed)}")
    choices = tuple(name for name in ENGINES if name != EAGER)
    if engine not in choices:
        raise InputError(f"Unknown engine {engine!r}.{did_you_mean(engine, choices)}")


def _precisions(
    model: Architecture, device: Device, weights: Sequence[str], kv_dtype: str | None, refused: list[Refused]
) -> list[Precision]:
    """The precisions that a device has, each once."""
    found: dict[str, Precision] = {}
    for name in weights:
        try:
            precision = choose_precision(model, device, "bf16", None if name == AS_PUBLISHED else name, kv_dtype)
        except DeviceError as error:
            reason = str(error).split(";")[0].removesuffix(".")
            # a device that computes in none of them is named once
            if not any(one.reason == reason for one in refused):
                place = device.id if name == AS_PUBLISHED else f"{device.id}, {name}"
                refused.append(Refused(place, reason, "precision"))
        else:
            found.setdefault(precision.weights, precision)
    return list(found.values())


def _rank(choice: LlmChoice, by: Objective) -> tuple[bool, float]:
    if by == "usd":
        return False, choice.usd_per_million_tokens.value
    value = getattr(choice.prediction, _FIELDS[by])
    return value is None, 0.0 if value is None else value.value


@dataclass(frozen=True)
class _Search:
    """The search for one model, its lengths and limits."""

    model: Architecture
    lengths: tuple[int, int]
    limits: LlmLimits
    engine: Engine
    fraction: float

    def on(
        self, device: Device, precision: Precision, offers: Sequence[Offer]
    ) -> tuple[list[LlmChoice], list[Refused]]:
        """All choices on one kind of GPU in one precision, and why others are none."""
        found: list[LlmChoice] = []
        reasons: list[Refused] = []
        for size in _SIZES:
            place = Deployment(self.model, device, precision.weights, precision.kv_bytes, tensor=size)
            choice = self._choice(place, precision, offers)
            if isinstance(choice, Refused):
                reasons.append(choice)
                if choice.kind == _MACHINE:
                    break
                continue
            found.append(choice)
            cheapest = min(one.usd_per_million_tokens.value for one in found)
            if choice.usd_per_million_tokens.value > _DEARER * cheapest:
                break
        return found, reasons

    def _choice(self, place: Deployment, precision: Precision, offers: Sequence[Offer]) -> LlmChoice | Refused:
        """The best of one deployment, or why there is none."""
        try:
            place.check()
        except InputError as error:
            return _refuse(place, "parallelism", str(error).split(";")[0])
        if place.gpus > max((offer.devices for offer in offers), default=0):
            return _refuse(place, _MACHINE, f"nobody rents out {place.gpus} of them in one machine")
        most = place.max_concurrency(sum(self.lengths), self.fraction)
        if not most:
            return _refuse(place, "memory", "it does not fit")
        found = self._largest(place, min(most, _MOST_CLIENTS))
        if isinstance(found, str):
            return _refuse(place, "latency", found)
        clients, load = found
        prediction = served(
            place, load, self.engine.name, self.lengths, clients, self.fraction, precision.notes, offers
        )
        return self._rented(prediction, place, load, offers)

    def _largest(self, place: Deployment, most: int) -> tuple[int, Load] | str:
        """The most requests at a time that keep the limits, and their load; or what even one breaks."""
        steps = Steps(place, shipped_kernels(), self.engine.framework)
        ladder = _ladder(most)
        best: tuple[int, Load] | None = None
        # more requests are slower: the largest number is tried first, then halves of what is left
        first, last, middle = 0, len(ladder), len(ladder) - 1
        while first < last:
            load = steady_load(steps, self.engine, *self.lengths, ladder[middle], self.fraction)
            broken = self.limits.broken_by(load)
            if broken is None:
                best, first = (ladder[middle], load), middle + 1
            else:
                last = middle
            middle = (first + last) // 2
        # without a best, the last that was tried is one request
        return best or f"{broken}, with one request at a time"

    def _rented(
        self, prediction: LlmPrediction, place: Deployment, load: Load, offers: Sequence[Offer]
    ) -> LlmChoice | Refused:
        """The cheapest machines for a deployment, or why there are none."""
        assert prediction.tokens_per_s is not None
        rate = self.limits.rate_per_s
        copies = 1 if rate is None else math.ceil(rate / load.requests_per_s)
        rents: list[tuple[float, int, Offer]] = []
        for offer in offers:
            fit = offer.devices // gpus_together(place)
            if fit and offer.usd_per_h is not None:
                # without a rate, other work fills a machine that is larger than a copy
                machines = math.ceil(copies / fit)
                share = 1 / fit if rate is None else machines
                rents.append((offer.usd_per_h * share, machines, offer))
        if not rents:
            return _refuse(place, _MACHINE, f"nobody rents out {gpus_together(place)} of them in one machine")
        usd, machines, offer = min(rents, key=lambda rent: rent[0])
        if self.limits.budget_usd_per_h is not None and usd > self.limits.budget_usd_per_h:
            over = f"it costs {usd:,.2f} $ an hour; the budget is {self.limits.budget_usd_per_h:g}"
            return _refuse(place, "budget", over)
        if rate is None:
            cost = prediction.tokens_per_s.inverted(usd / _SECONDS_PER_H * MEGA)
        else:  # so many tokens are asked for, however many could be made
            each = usd / _SECONDS_PER_H / (rate * prediction.output_tokens) * MEGA
            cost = Estimate(each, each, each)
        return LlmChoice(
            replace(prediction, usd_per_million_tokens=cost, offer=offer.name), offer.name, copies, machines, usd,
            cost, self._at_risk(prediction),
        )  # fmt: skip

    def _at_risk(self, prediction: LlmPrediction) -> bool:
        pairs = ((prediction.ttft_ms, self.limits.ttft_ms), (prediction.tpot_ms, self.limits.tpot_ms))
        return any(limit is not None and own is not None and own.high > limit for own, limit in pairs)


def _refuse(place: Deployment, kind: str, reason: str) -> Refused:
    return Refused(f"{place.tensor} × {place.device.id}, {place.weights.removesuffix('_weights')}", reason, kind)


def _ladder(most: int) -> list[int]:
    """Numbers of requests to try: powers of two, and those between.

    >>> _ladder(20)
    [1, 2, 3, 4, 6, 8, 12, 16, 20]
    """
    steps = {size for power in range(most.bit_length()) for size in (2**power, 3 * 2**power // 2) if size <= most}
    return sorted(steps | {most})
