"""Web: answer a question in a worker. The answer is what a command prints with ``--json``, or a report page."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from foretell.advisors.placement import Requirements
from foretell.errors import ModelError
from foretell.frontends.sources import recognise
from foretell.rendering.html.report import report_page
from foretell.web.questions import ALLOWED, EXAMPLE
from foretell.workflows.advise import Renting, advise_serving, advise_training
from foretell.workflows.compare import ModelComparison
from foretell.workflows.llm import llm
from foretell.workflows.memory.fit import fit
from foretell.workflows.predict import predict
from foretell.workflows.report import gather
from foretell.workflows.serving.advise_llm import advise_llm
from foretell.workflows.sharing.share import share
from foretell.workflows.sweep import sweep

UPLOADED_KINDS = ("onnx", "pt2")
_WHOLE_DEVICE = "whole"
_EXAMPLE_FILE = Path(__file__).parent / "page" / "resnet50.fgraph"

Fields = dict[str, Any]


def answer(
    kind: str, fields: Mapping[str, Any], files: Mapping[str, str], names: Mapping[str, str] | None = None
) -> str:
    """The text of an answer; ``files`` has the paths of the uploads, by field, ``names`` what a report calls them."""
    values = dict(fields)
    if kind in _SERVED:  # a configuration is read as numbers: there is neither a file nor a graph
        return _SERVED[kind](values)
    for name, file in files.items():
        check_upload(file)
        values[name] = file
    # Uploads are private: not even their graphs stay in the cache.
    values["use_cache"] = not files
    values["input_shape"] = values["input_shape"] or None
    if kind == "report":
        values["name"] = (names or {}).get("model") or _name(values["model"])
    return _ANSWERS[kind](values)


def check_upload(file: str) -> None:
    """Refuse a file whose content is neither ONNX nor .pt2, whatever its name says."""
    kind = recognise(file)
    if kind not in UPLOADED_KINDS:
        raise ModelError(f"{Path(file).name} holds a model of the kind {kind!r}. Allowed are {ALLOWED}.")


def _llm(values: Fields) -> str:
    answered = llm(values.pop("model"), **values)
    return _json(answered.to_dict())


def _advise_llm(values: Fields) -> str:
    renting = Renting(*(values.pop(name) for name in ("clouds", "region", "country", "market", "pue")))
    return _json(advise_llm(values.pop("model"), renting=renting, **values).to_dict())


def _fit(values: Fields) -> str:
    model = values.pop("model")
    return _json({**fit(_source(model), **values).to_dict(), "model": _name(model)})


def _source(model: str) -> str:
    """The graph of the example; any other model as it is."""
    return str(_EXAMPLE_FILE) if model == EXAMPLE else model


def _predict(values: Fields) -> str:
    model = values.pop("model")
    prediction = predict(_source(model), **values)
    return _json({**prediction.to_dict(), "model": _name(model)})


def _compare(values: Fields) -> str:
    del values["use_cache"]
    # Each model for itself: a spec beside an upload must not be converted again every time.
    models = values.pop("model"), values.pop("other")
    first, second = (predict(_source(model), **values, use_cache=not _is_upload(model)) for model in models)
    return _json(ModelComparison(first, second).to_dict())


def _share(values: Fields) -> str:
    models = [values.pop("model"), values.pop("other")]
    options = {name: values[name] for name in ("device", "method", "allow_unknown", "use_cache")}
    sharing = share(
        [_source(model) for model in models], batch_sizes=values["batch_size"], dtypes=values["dtype"],
        modes=values["mode"],
        input_shapes=values["input_shape"] and [values["input_shape"]] * len(models), **options,
    )  # fmt: skip
    jobs = [replace(job, model=_name(model)) for job, model in zip(sharing.jobs, models, strict=True)]
    return _json(replace(sharing, jobs=tuple(jobs)).to_dict())


def _sweep(values: Fields) -> str:
    del values["dtype"]  # every question has one, but a sweep has a list of dtypes
    values["slices"] = [None if part == _WHOLE_DEVICE else part for part in values["slices"]]
    return _json([point.to_row() for point in sweep(_source(values.pop("model")), **values)])


def _advise(values: Fields) -> str:
    model, steps = _source(values["model"]), values["steps"]
    renting = Renting(*(values[name] for name in ("clouds", "region", "country", "market", "pue")))
    common = {name: values[name] for name in ("devices", "dtype", "input_shape", "use_cache")}
    if values["train"]:
        training_options = {name: values[name] for name in ("batch_size", "optimizer")}
        return _json(advise_training(model, steps, renting, **common, **training_options).to_dict())
    requirements = _requirements(values, objective=values["by"], max_batch=values["max_batch"])
    return _json(
        advise_serving(model, requirements, renting, mig=values["mig"], shared=values["shared"], **common).to_dict()
    )


def _requirements(values: Fields, **others: Any) -> Requirements:
    return Requirements(values["slo_ms"], values["rate"], values["budget"], **others)


def _report(values: Fields) -> str:
    model, requirements = values.pop("model"), _requirements(values)
    rest = {name: value for name, value in values.items() if name not in ("slo_ms", "rate", "budget")}
    return report_page(gather(_source(model), requirements=requirements, **rest))


def _name(model: str) -> str:
    """A spec as it is; an upload by its file name, because paths of the server are private."""
    return Path(model).name if _is_upload(model) else model


def _is_upload(model: str) -> bool:
    return Path(model).is_absolute()  # specs are no paths


def _json(values: Any) -> str:
    return json.dumps(values, allow_nan=False)  # browsers cannot parse NaN


_SERVED: dict[str, Callable[[Fields], str]] = {"llm": _llm, "advise-llm": _advise_llm}
_ANSWERS: dict[str, Callable[[Fields], str]] = {
    "predict": _predict, "fit": _fit, "compare": _compare, "share": _share, "sweep": _sweep, "advise": _advise,
    "report": _report,
}  # fmt: skip
