"""workflows: advice and comparisons as plain dictionaries: what ``--json`` prints, and what the page's API answers."""

from typing import Any

from foretell.advisors.placement import Choice, Placement
from foretell.records import METRICS, Estimate, Prediction
from foretell.workflows.advise import TrainingAdvice

_FACTS = ("parameters", "macs", "flops")
COMPARED = (*METRICS, *_FACTS)

Plain = dict[str, Any]


def interval(estimate: Estimate | None) -> Plain | None:
    """An estimate's value and its ends; None where it is not known."""
    return None if estimate is None else {"value": estimate.value, "low": estimate.low, "high": estimate.high}


def placement(found: Placement) -> Plain:
    """Where to serve a model: the choices, those that none beats, and why others fell out."""
    return {
        "choices": [_choice(choice) for choice in found.choices],
        "front": [_choice(choice) for choice in found.front],
        "refused": [{"place": each.place, "reason": each.reason} for each in found.refused],
    }


def _choice(choice: Choice) -> Plain:
    candidate, cost = choice.candidate, choice.cost
    return {
        "device": candidate.device, "slice": candidate.slice, "dtype": candidate.dtype,
        "batch_size": candidate.batch_size, "instance": choice.offer.name, "devices": choice.offer.devices,
        "copies": candidate.copies, "usd_per_h": choice.offer.usd_per_h, "note": choice.offer.note,
        "latency_ms": interval(candidate.latency_ms), "usd_per_million": interval(cost.usd_per_million),
        "kwh_per_million": interval(cost.kwh_per_million), "kg_co2e_per_million": interval(cost.kg_co2e_per_million),
        "instances": interval(choice.fleet.instances if choice.fleet else None), "at_risk": choice.at_risk,
        "calibrated": candidate.calibrated, "unknown": dict(cost.unknown),
    }  # fmt: skip


def training(advice: TrainingAdvice, steps: int) -> Plain:
    """Where to train a model for some steps."""
    choices = [
        {
            "device": each.prediction.device, "instance": each.offer.name, "batch_size": each.prediction.batch_size,
            "step_ms": interval(each.prediction.latency_ms), "hours": interval(each.cost.hours),
            "usd": interval(each.cost.usd), "kwh": interval(each.cost.kwh), "kg_co2e": interval(each.cost.kg_co2e),
            "unknown": dict(each.cost.unknown),
        }
        for each in advice.choices
    ]  # fmt: skip
    refused = [{"place": each.place, "reason": each.reason} for each in advice.refused]
    return {"steps": steps, "choices": choices, "refused": refused}


def value_of(told: Prediction, name: str) -> float | None:
    """One of `COMPARED` of a prediction; None where it is not known."""
    if name in _FACTS:
        return told.facts.get(name)
    estimate: Estimate | None = getattr(told, name)
    return None if estimate is None else estimate.value


def times(first: Prediction, second: Prediction) -> dict[str, float]:
    """By metric how many times as much the second takes; what either does not know is left out."""
    pairs = {name: (value_of(first, name), value_of(second, name)) for name in COMPARED}
    return {name: other / one for name, (one, other) in pairs.items() if one and other is not None}
