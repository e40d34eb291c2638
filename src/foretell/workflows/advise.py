"""Workflows: advise where to serve or train a model, from predictions for all devices, prices and carbon data."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from foretell.advisors.batch import saturations
from foretell.advisors.carbon import CarbonFacts, load_carbon
from foretell.advisors.costs import TrainingCost, training_cost
from foretell.advisors.placement import Advice, Candidate, Objective, Offer, Refused, Requirements, place
from foretell.advisors.prices import Price, load_prices, select_prices
from foretell.devices import Device, Slice, find_device, parse_slice
from foretell.errors import InputError
from foretell.graph import Graph
from foretell.readable import Readable, flat_row, spell
from foretell.records import Prediction, Target, Workload, interval
from foretell.registry import did_you_mean
from foretell.workflows.sharing.copies import is_measured, shared_candidates
from foretell.workflows.sweep import ALL, devices_named, sweep
from foretell.workflows.workload import (
    Configuration,
    InputShape,
    check_dtype,
    choose_predictor,
    has_batch,
    load_graph,
)

Market = Literal["on-demand", "spot"]
MARKETS: tuple[Market, ...] = ("on-demand", "spot")
NOT_RENTED = "not rented"
_LARGEST_BATCH = 256
_MAX_LINES = 5
_MIG = "mig:"

OnPlace = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Renting:
    """Where to look for instances; without a PUE only the energy of the devices counts."""

    clouds: Sequence[str] = ()
    region: str | None = None
    country: str | None = None
    market: Market = "on-demand"
    pue: float | None = None
    prices: Path | str | None = None


@dataclass(frozen=True, slots=True)
class TrainingChoice:
    """Training on one device of an instance. The cost is that of the whole instance."""

    prediction: Prediction
    offer: Offer
    cost: TrainingCost


@dataclass(frozen=True, repr=False)
class TrainingAdvice(Readable):
    """The choices for training over some steps, cheapest first, and the refused devices."""

    choices: tuple[TrainingChoice, ...]
    refused: tuple[Refused, ...]
    steps: int

    def heading(self) -> str:
        """The number of steps and of choices."""
        return f"Training advice: {self.steps:,} steps, {len(self.choices)} choices"

    def lines(self) -> Iterator[tuple[str, str]]:
        """The five cheapest choices."""
        for choice in self.choices[:_MAX_LINES]:
            usd = f", {spell(choice.cost.usd)} $" if choice.cost.usd is not None else ""
            yield f"{choice.prediction.device}, {choice.offer.name}", f"{spell(choice.cost.hours)} h{usd}"

    def rows(self) -> list[dict[str, Any]]:
        """One flat row for each choice, cheapest first."""
        return [flat_row(choice, leave_out="unknown") for choice in self.to_dict()["choices"]]

    def to_dict(self) -> dict[str, Any]:
        """The object that ``foretell advise --train --json`` prints."""
        choices = [
            {
                "device": choice.prediction.device, "instance": choice.offer.name,
                "batch_size": choice.prediction.batch_size, "step_ms": interval(choice.prediction.latency_ms),
                "hours": interval(choice.cost.hours), "usd": interval(choice.cost.usd),
                "kwh": interval(choice.cost.kwh), "kg_co2e": interval(choice.cost.kg_co2e),
                "unknown": dict(choice.cost.unknown),
            }
            for choice in self.choices
        ]  # fmt: skip
        refused = [{"place": refused.place, "reason": refused.reason} for refused in self.refused]
        return {"steps": self.steps, "choices": choices, "refused": refused}


def advise(
    model: Any,
    *,
    slo_ms: float | None = None,
    rate: float | None = None,
    budget: float | None = None,
    max_batch: int | None = None,
    by: Objective = "usd",
    clouds: Sequence[str] = (),
    region: str | None = None,
    country: str | None = None,
    market: Market = "on-demand",
    pue: float | None = None,
    prices: Path | str | None = None,
    devices: Sequence[str | Device] = (ALL,),
    dtype: str = "fp16",
    mig: bool = True,
    shared: bool = False,
    input_shape: InputShape = None,
    trust: bool = False,
    use_cache: bool = True,
    memory_limit_gib: float | None = None,
    timeout_s: float | None = None,
) -> Advice:
    """Find the device, MIG slice, batch size and instance that serve a model best.

    Args:
        model: As `foretell.predict` takes it.
        slo_ms: The longest latency allowed.
        rate: Requests a second.
        budget: Dollars an hour for all instances.
        max_batch: The largest batch size; 256 by default.
        by: Rank by ``usd``, ``energy`` or ``carbon``.
        clouds: Names of clouds; all by default.
        region: A cloud's region.
        country: The country whose power grid counts for carbon, instead of the region's.
        market: ``on-demand`` or ``spot``.
        pue: Energy of the data centre over that of the devices.
        prices: A file of your own prices.
        devices: Names from the catalogue; ``all`` means every GPU of it that a price is known for.
        dtype: fp32, fp16, bf16, …
        mig: Try MIG slices too.
        shared: Try two and three copies of the model on one GPU under MPS too, where that was measured.
        input_shape: Shape of the input without the batch.
        trust: Allow code that comes with the model to run.
        use_cache: Store the converted graph for the next call.
        memory_limit_gib: Memory that reading a file may take; 8 GiB by default.
        timeout_s: Seconds that reading a file may take; 300 by default.

    >>> from foretell.testing import tiny_onnx
    >>> advice = advise(tiny_onnx(), slo_ms=5, devices=["h200", "l4"], mig=False)
    >>> advice.choices[0].candidate.device, advice.choices[0].at_risk
    ('l4', False)
    """
    requirements = Requirements(slo_ms, rate, budget, max_batch, objective=by)
    renting = Renting(clouds, region, country, market, pue, prices)
    return advise_serving(
        model, requirements, renting, devices=devices, dtype=dtype, mig=mig, shared=shared, input_shape=input_shape,
        trust=trust, use_cache=use_cache,
        memory_limit_gib=memory_limit_gib, timeout_s=timeout_s,
    )  # fmt: skip


def advise_serving(
    model: Any,
    requirements: Requirements,
    renting: Renting | None = None,
    *,
    devices: Sequence[str | Device] = (ALL,),
    dtype: str = "fp16",
    mig: bool = True,
    shared: bool = False,
    input_shape: InputShape = None,
    trust: bool = False,
    use_cache: bool = True,
    memory_limit_gib: float | None = None,
    timeout_s: float | None = None,
    on_place: OnPlace = lambda _done, _all: None,
) -> Advice:
    """Like `advise`, with the requirements and the options for renting as records.

    ``on_place`` is called with how many of how many places are predicted.
    """
    renting = renting or Renting()
    limit = requirements.max_batch or _LARGEST_BATCH
    # Powers of two only: every batch size costs one prediction for each device and slice.
    batch_sizes = [1 << power for power in range(limit.bit_length()) if 1 << power <= limit]
    gpus, offers = considered(devices, renting)
    number = check_dtype(dtype)
    graph = load_graph(
        model, input_shape=input_shape, trust=trust, use_cache=use_cache, memory_limit_gib=memory_limit_gib,
        timeout_s=timeout_s,
    )  # fmt: skip
    batch_sizes = batch_sizes if has_batch(graph) else [1]
    targets = [Target(device, part) for device in gpus for part in (None, *(_mig_slices(device) if mig else ()))]
    predictions = list(_predictions(graph, targets, number, batch_sizes, requirements, on_place))
    candidates = [candidate for prediction in predictions for candidate in _candidates(prediction)]
    apart: list[Refused] = []
    if shared:
        for device in gpus:
            whole = [one for one in candidates if one.device == device.id and one.slice is None]
            candidates += shared_candidates(graph, device, whole)
            if not is_measured(device):
                apart.append(Refused(f"{device.id} by MPS", "sharing: nobody measured how this GPU is shared"))
    advice = place(candidates, offers, requirements)
    notes = tuple(found.sentence for found in saturations(predictions))
    return replace(advice, refused=(*advice.refused, *apart), notes=notes)


def _predictions(
    graph: Graph,
    targets: Sequence[Target],
    dtype: str,
    batch_sizes: Sequence[int],
    requirements: Requirements,
    on_place: OnPlace,
) -> Iterator[Prediction]:
    """The predictions for each place up to the batch size that takes too long or does not surely fit.

    Larger batches take longer and need more, so they are not predicted.
    """
    graphs: dict[int, Graph] = {}  # made once: GPUs share what does not depend on them
    for done, target in enumerate(targets):
        on_place(done, len(targets))
        predictor = choose_predictor(None, target)
        for size in batch_sizes:
            if size not in graphs:
                graphs[size] = Configuration(target, size, dtype).workload(graph).graph
            prediction = predictor.predict(Workload(graphs[size], target, dtype))
            yield prediction
            latency = prediction.latency_ms
            is_slow = requirements.slo_ms is not None and latency is not None and latency.value > requirements.slo_ms
            if is_slow or prediction.fits not in ("yes", None):
                break


def advise_training(
    model: Any,
    steps: int,
    renting: Renting | None = None,
    *,
    devices: Sequence[str | Device] = (ALL,),
    batch_size: int = 32,
    dtype: str = "fp32",
    optimizer: str = "sgd",
    input_shape: InputShape = None,
    trust: bool = False,
    use_cache: bool = True,
    memory_limit_gib: float | None = None,
    timeout_s: float | None = None,
) -> TrainingAdvice:
    """Hours, dollars, energy and carbon of training on one device of each kind, cheapest first."""
    renting = renting or Renting()
    gpus, offers = considered(devices, renting)
    choices, refused = [], []
    for point in sweep(
        model, devices=gpus, batch_sizes=[batch_size], dtypes=[dtype], mode="training", optimizer=optimizer,
        input_shape=input_shape, trust=trust, use_cache=use_cache,
        memory_limit_gib=memory_limit_gib, timeout_s=timeout_s,
    ):  # fmt: skip
        prediction = point.prediction
        # as in serving: it must surely fit
        if prediction.latency_ms is None or prediction.fits not in ("yes", None):
            need = f"{prediction.need_mib.high:,.0f}" if prediction.need_mib else "?"
            capacity = f" of {prediction.capacity_mib:,.0f}" if prediction.capacity_mib else ""
            refused.append(Refused(prediction.device, f"memory: a step may need {need} MiB{capacity}"))
            continue
        for offer in offers:
            if offer.device == prediction.device:
                cost = training_cost(
                    prediction.latency_ms, steps, usd_per_h=offer.usd_per_h, power_w=prediction.power_w, pue=offer.pue,
                    g_co2e_per_kwh=offer.g_co2e_per_kwh,
                )  # fmt: skip
                choices.append(TrainingChoice(prediction, offer, cost))
    choices.sort(key=_cheapest)
    return TrainingAdvice(tuple(choices), tuple(refused), steps)


def _cheapest(choice: TrainingChoice) -> tuple[bool, bool, float, float]:
    """Complete prices first, then those without the machine, then unknown ones; the fastest of equal ones first."""
    usd = choice.cost.usd
    return usd is None, choice.offer.incomplete, usd.value if usd else 0.0, choice.cost.hours.value


def considered(devices: Sequence[str | Device], renting: Renting) -> tuple[list[Device], list[Offer]]:
    """The devices that a user names, and what can be rented for them; nothing of it needs the model.

    Of all devices, those that somebody rents out: most of the catalogue has no price.
    """
    if renting.country is not None:
        load_carbon().intensity(country=renting.country)  # refuses an unknown one
    rented = {price.device for price in load_prices(renting.prices)}
    gpus = [
        device
        for device_or_name in devices
        for device in devices_named(device_or_name)
        if device_or_name != ALL or device.id in rented
    ]
    return gpus, find_offers(gpus, renting)


def _mig_slices(device: Device) -> list[Slice]:
    """The MIG slices that fit several times on a device. A slice that fits once costs as much as the whole device."""
    return [
        parse_slice(f"{_MIG}{profile.name}", device) for profile in device.mig_profiles if profile.max_instances > 1
    ]


def _candidates(prediction: Prediction) -> Iterator[Candidate]:
    if prediction.latency_ms is not None:
        yield Candidate(
            prediction.device,
            prediction.slice,
            prediction.dtype,
            prediction.batch_size,
            prediction.latency_ms,
            prediction.device_memory_mib or prediction.memory_mib,
            prediction.facts.get("memory_capacity_mib"),
            # The energy of slices is not known: they share the idle power of the device.
            None if prediction.slice else prediction.energy_j,
            None if prediction.slice else prediction.power_w,
            _copies(prediction),
            not prediction.extrapolated,
        )


def _copies(prediction: Prediction) -> int:
    profiles = {
        f"{_MIG}{profile.name}": profile.max_instances for profile in find_device(prediction.device).mig_profiles
    }
    return profiles.get(prediction.slice or "", 1)


def find_offers(devices: Sequence[Device], renting: Renting) -> list[Offer]:
    """What can be rented for each device. A device without any price is offered too, with an unknown price."""
    if renting.pue is not None and not 1 <= renting.pue < math.inf:
        raise InputError(f"The PUE is {renting.pue:g}; it must be a number of at least 1, or left out.")
    if renting.market not in MARKETS:
        raise InputError(f"Unknown market {renting.market!r}.{did_you_mean(renting.market, MARKETS)}")
    prices, carbon = load_prices(renting.prices), load_carbon()
    known = sorted({price.cloud for price in prices})
    for cloud in renting.clouds:
        if cloud.lower() not in known:
            raise InputError(f"There are no prices for the cloud {cloud!r}.{did_you_mean(cloud, known)}")
    regions = sorted({price.region for price in prices})
    if renting.region is not None and renting.region.lower() not in (region.lower() for region in regions):
        close = did_you_mean(renting.region, regions)
        raise InputError(f"There are no prices in the region {renting.region!r}.{close}")
    clouds = [cloud.lower() for cloud in renting.clouds]
    offers = []
    for device in devices:
        own = [
            price
            for price in select_prices(prices, device=device.id, region=renting.region)
            if not clouds or price.cloud in clouds
        ]
        offers += [_offer(price, renting, carbon) for price in own]
        # If the user names clouds, a device that none of them rents out is not a choice.
        if not own and not clouds:
            grid = carbon.intensity(country=renting.country).value if renting.country else None
            offers.append(Offer(device.id, NOT_RENTED, 1, None, grid, renting.pue or 1.0))
    return offers


def _offer(price: Price, renting: Renting, carbon: CarbonFacts) -> Offer:
    grid = carbon.intensity(cloud=price.cloud, region=price.region, country=renting.country).value
    incomplete = price.covers == "devices"
    note = "the price covers the devices only, not the machine: what you pay is more (by dollars it comes last)"
    name = f"{price.cloud} {price.instance} ({price.region})"
    pue = renting.pue or carbon.pue(price.cloud).value or 1.0
    return Offer(price.device, name, price.devices, price.usd_per_h_as(renting.market), grid, pue,
                 note if incomplete else "", incomplete)  # fmt: skip
