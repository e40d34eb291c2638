"""Web: the answers of the tools, short enough for a context window: what decides, with units and intervals.

Every quantity with an interval is ``{"value", "low", "high"}`` (nine times in ten the truth lies between the ends), and
its name has its unit. Numbers have four digits, lists a few rows, and texts are cut.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from foretell.advisors.placement import Requirements
from foretell.devices import Device, all_devices, find_device
from foretell.errors import InputError, ModelError
from foretell.frontends.sources import recognise
from foretell.records import METRICS
from foretell.registry import did_you_mean
from foretell.workflows.advise import Renting, advise_serving
from foretell.workflows.improving.improve import improve
from foretell.workflows.inspect import inspect
from foretell.workflows.llm import llm
from foretell.workflows.memory.fit import fit
from foretell.workflows.predict import predict
from foretell.workflows.sharing.share import share

MOST_CHARACTERS = 8000  # of an answer: about 2,500 tokens
_DIGITS = 4
_ROWS, _OPERATORS, _WARNINGS, _TEXT = 5, 5, 3, 300

_READ = ("onnx", "pt2")  # kinds of files that run nothing
_ADVISED = (
    "place", "batch_size", "instance", "usd_per_h", "latency_ms", "items_per_s", "usd_per_million", "kwh_per_million",
    "kg_co2e_per_million", "instances", "at_risk", "note",
)  # fmt: skip

Fields = dict[str, Any]
Answer = dict[str, Any]


def answer(tool: str, fields: Mapping[str, Any]) -> str:
    """The answer of a tool as compact JSON."""
    if tool != "llm":  # a configuration is read as numbers, and has no kind to check
        for model in fields.get("of") or [fields.get("model", "")]:
            _check_kind(model)
    text = json.dumps(shortened(_ANSWERS[tool](dict(fields))), ensure_ascii=False, allow_nan=False)
    if len(text) > MOST_CHARACTERS:
        raise InputError(f"The answer has {len(text):,} characters, more than {MOST_CHARACTERS:,}: ask for less.")
    return text


def shortened(value: Any) -> Any:
    """A value with four digits and texts of a few hundred characters.

    >>> shortened({"ms": 1.23456789, "count": 1234567, "tiny": 0.000012345})
    {'ms': 1.235, 'count': 1234567, 'tiny': 1.234e-05}
    """
    if isinstance(value, float):
        rounded = float(f"{value:.{_DIGITS}g}")
        return int(rounded) if rounded.is_integer() and abs(rounded) >= 10 ** (_DIGITS - 1) else rounded
    if isinstance(value, str):
        return value if len(value) <= _TEXT else value[: _TEXT - 1] + "…"
    if isinstance(value, Mapping):
        return {name: shortened(one) for name, one in value.items()}
    return [shortened(one) for one in value] if isinstance(value, list | tuple) else value


def _predict(values: Fields) -> Answer:
    model = values.pop("model")
    prediction = predict(model, **values)
    document = prediction.to_dict()
    head = ("device", "slice", "runtime", "mode", "batch_size", "dtype")
    result = {"model": _name(model)} | {name: document[name] for name in head if document[name] is not None}
    result |= {name: document[name] for name in ("fits", *METRICS) if name in document}
    capacity = prediction.facts.get("memory_capacity_mib")
    if capacity:
        result["memory_capacity_mib"] = capacity
    result["slowest_operators"] = [
        {"operator": row["operator"], "share": row["share"], "bound_by": row["bound"]}
        for row in document["breakdown"][:_OPERATORS]
    ]
    return result | {"extrapolated": prediction.extrapolated} | _warnings(prediction.warnings)


def _fit(values: Fields) -> Answer:
    model = values.pop("model")
    document = fit(model, **values).to_dict()
    return document | {"model": _name(model)} | _warnings(document["warnings"])


def _advise(values: Fields) -> Answer:
    model = values.pop("model")
    requirements = Requirements(
        values["slo_ms"], values["rate"], values["budget"], values["max_batch"], objective=values["by"]
    )
    renting = Renting(values["clouds"], values["region"])
    common = {name: values[name] for name in ("devices", "dtype", "input_shape", "mig", "use_cache")}
    advice = advise_serving(model, requirements, renting, **common)
    rows = advice.to_dict()["choices"][:_ROWS]
    reasons = Counter(refused.reason.partition(":")[0] for refused in advice.refused)
    best = [
        {name: row[name] for name in _ADVISED if row.get(name) not in (None, "")}
        | {"extrapolated": not row["calibrated"]}
        for row in rows
    ]
    return {
        "model": _name(model), "ranked_by": values["by"], "places": len(advice.choices), "best": best,
        "refused": dict(reasons.most_common(_ROWS)), "notes": list(advice.notes[:_WARNINGS]),
    }  # fmt: skip


def _improve(values: Fields) -> Answer:
    model = values.pop("model")
    document = improve(model, **values).to_dict()
    kept = ("change", "gain", "sure", "accuracy", "how", "why")

    def row(change: Answer) -> Answer:
        return {name: change[name] for name in kept if name in change}

    result = {"model": _name(model), "by": document["by"], "before": document["before"]}
    result["changes"] = [row(change) for change in document["changes"][:_ROWS]]
    if "together" in document:
        result["together"] = row(document["together"])
    result["rejected"] = {change["change"]: change["reason"] for change in document["rejected"][: 2 * _ROWS]}
    return result | {"extrapolated": document["extrapolated"]} | _warnings((*document["notes"], *document["warnings"]))


def _share(values: Fields) -> Answer:
    models = values.pop("of")
    sharing = share(
        models, device=values["device"], method=values["method"], batch_sizes=_each(values["batch_sizes"]),
        dtypes=_each(values["dtypes"]), limits_ms=values["limits_ms"] and _each(values["limits_ms"]),
        use_cache=values["use_cache"],
    )  # fmt: skip
    jobs = tuple(replace(job, model=_name(model)) for job, model in zip(sharing.jobs, models, strict=True))
    document = replace(sharing, jobs=jobs).to_dict()
    return document | _warnings(document["warnings"])


def _llm(values: Fields) -> Answer:
    del values["use_cache"]
    model = values.pop("model")
    document = llm(model, **values).to_dict()
    return document | {"model": _name(model)} | _warnings(document["warnings"])


def _inspect(values: Fields) -> Answer:
    model = values.pop("model")
    document = inspect(model, **values).to_dict()
    result = {
        name: document[name] for name in ("batch_size", "dtype", "inputs", "nodes", "parameters", "macs", "flops")
    }
    rows = sorted(document["by_operator"].items(), key=lambda row: -row[1]["flops"])
    result["by_operator"] = {name: {key: row[key] for key in ("count", "flops")} for name, row in rows[: 2 * _ROWS]}
    result |= {name: document[name] for name in ("parameter_bytes", "activation_bytes", "memory_bytes", "coverage")}
    result["unknown_operators"] = list(document["unknown_operators"])[:_ROWS]
    return {"model": _name(model)} | result | _warnings(document["warnings"])


def _devices(values: Fields) -> Answer:
    name, maker = values["name"], values["maker"]
    if name is not None:
        return _facts(find_device(name))
    vendors = sorted({device.vendor.lower() for device in all_devices()})
    if maker is not None and maker.lower() not in vendors:
        raise InputError(f"Unknown maker {maker!r}.{did_you_mean(maker.lower(), vendors)}")
    found = [device for device in all_devices() if maker is None or device.vendor.lower() == maker.lower()]
    by_maker: dict[str, list[str]] = {}
    for device in found:
        by_maker.setdefault(device.vendor, []).append(device.id)
    # a list of names is one text: quotation marks and commas would double it
    return {"count": len(found), "devices": by_maker, "measured": ["h200", "cpu"]}


def _facts(device: Device) -> Answer:
    return {
        "device": device.id, "name": device.name, "maker": device.vendor, "architecture": device.architecture,
        "memory_gib": device.memory_gib, "bandwidth_gb_per_s": device.bandwidth_gb_per_s, "sms": device.sms,
        "tdp_w": device.tdp_w, "tensor_tflops": dict(device.tensor_tflops), "vector_tflops": dict(device.vector_tflops),
        "mig_profiles": [profile.name for profile in device.mig_profiles],
    }  # fmt: skip


def _each(values: list[Any]) -> Any:
    """One value for all models, or one for each."""
    return values[0] if len(values) == 1 else values


def _warnings(texts: Any) -> Answer:
    found = list(texts)
    more = [f"and {len(found) - _WARNINGS} more"] if len(found) > _WARNINGS else []
    return {"warnings": [*found[:_WARNINGS], *more]} if found else {}


def _check_kind(model: str) -> None:
    """Refuse a file whose content is neither ONNX nor .pt2, whatever its name says."""
    if Path(model).is_absolute() and (kind := recognise(model)) not in _READ:
        raise ModelError(f"{Path(model).name} holds a model of the kind {kind!r}; tools read ONNX and .pt2 files.")


def _name(model: str) -> str:
    """A name as it is; a file without its folder, which is none of the agent's business."""
    return Path(model).name if Path(model).is_absolute() else model


_ANSWERS: dict[str, Callable[[Fields], Answer]] = {
    "predict": _predict, "fit": _fit, "advise": _advise, "improve": _improve, "share": _share, "llm": _llm,
    "inspect": _inspect, "devices": _devices,
}  # fmt: skip
