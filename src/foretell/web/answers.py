"""Web: answer questions in a worker. The answer is what a command prints with ``--json``, or a report page.

Questions that arrived together are answered together: all predictions that they ask for are one call of
`predict_many`, which computes once what they have in common.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from foretell.advisors.placement import Requirements
from foretell.errors import ForetellError, ModelError
from foretell.frontends.sources import recognise
from foretell.graph import Graph
from foretell.records import Prediction
from foretell.rendering.html.report import report_page
from foretell.web.graphs import Graphs
from foretell.web.questions import ALLOWED, EXAMPLE
from foretell.workflows.advise import Renting, advise_serving, advise_training
from foretell.workflows.compare import ModelComparison
from foretell.workflows.llm import llm
from foretell.workflows.many.predict_many import predict_many
from foretell.workflows.memory.fit import fit
from foretell.workflows.predict import predict
from foretell.workflows.report import gather
from foretell.workflows.serving.advise_llm import advise_llm
from foretell.workflows.sharing.share import share
from foretell.workflows.sweep import sweep
from foretell.workflows.workload import read_configuration

UPLOADED_KINDS = ("onnx", "pt2")
_WHOLE_DEVICE = "whole"
_EXAMPLE_FILE = Path(__file__).parent / "page" / "resnet50.fgraph"

Fields = dict[str, Any]
Message = Mapping[str, Any]  # a question: kind, fields, files, names

GRAPHS = Graphs()  # of this process


def answer(
    kind: str, fields: Mapping[str, Any], files: Mapping[str, str], names: Mapping[str, str] | None = None
) -> str:
    """The text of an answer; ``files`` has the paths of the uploads, by field, ``names`` what a report calls them."""
    values = dict(fields)
    if kind in _SERVED:  # a configuration is read as numbers: there is neither a file nor a graph
        return _SERVED[kind](values)
    values |= files
    values["input_shape"] = values["input_shape"] or None
    # Uploads are private: not even their graphs stay in the cache.
    values["use_cache"] = not files
    if kind == "report":
        values["name"] = (names or {}).get("model") or _name(values["model"])
    asked = _asked(kind, values)
    if asked is not None:
        return _written(kind, values, [_raised(found) for found in predict_many(asked)])
    for file in files.values():
        check_upload(file)
    return _ANSWERS[kind](values)


def answer_together(messages: Sequence[Message]) -> Iterator[str | ForetellError | None]:
    """The texts of several answers, in order, with errors in their place; None where one has to be asked alone."""
    prepared: list[tuple[Fields, list[tuple[Graph, Fields]]] | ForetellError | None] = []
    for message in messages:
        values = {**message["fields"], **message["files"]}
        values["input_shape"] = values.get("input_shape") or None
        try:
            asked = _asked(message["kind"], values)
            prepared.append(None if asked is None else (values, asked))
        except ForetellError as error:
            prepared.append(error)
    found = predict_many(one for each in prepared if isinstance(each, tuple) for one in each[1])
    for message, each in zip(messages, prepared, strict=True):
        if not isinstance(each, tuple):
            yield each
            continue
        answers = [next(found) for _ in each[1]]
        errors = [one for one in answers if isinstance(one, ForetellError)]
        yield errors[0] if errors else _written(message["kind"], each[0], [_raised(one) for one in answers])


def _asked(kind: str, values: Fields) -> list[tuple[Graph, Fields]] | None:
    """The predictions that a question asks for, as `predict_many` takes them; None for other questions."""
    if kind not in ("predict", "compare") or values.get("latency_limit_ms") is not None:
        return None
    names = ("device", "batch_size", "dtype", "mode", "slice", "runtime", "optimizer", "predictor")
    options = {name: values[name] for name in names if values.get(name) is not None}
    read_configuration(**{name: value for name, value in options.items() if name != "predictor"})  # before it is read
    models = [values["model"], values["other"]] if kind == "compare" else [values["model"]]
    return [(_graph(model, values), options) for model in models]


def _graph(model: str, values: Fields) -> Graph:
    # Each model for itself: a spec beside an upload must not be converted again every time.
    check = check_upload if _is_upload(model) else lambda _: None
    return GRAPHS.of(_source(model), {**values, "use_cache": not _is_upload(model)}, check)


def _written(kind: str, values: Fields, predictions: Sequence[Prediction]) -> str:
    if kind == "compare":
        return _json(ModelComparison(*predictions).to_dict())
    return _json({**predictions[0].to_dict(), "model": _name(values["model"])})


def _raised(found: Prediction | ForetellError) -> Prediction:
    if isinstance(found, ForetellError):
        raise found
    return found


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


def _predict_within(values: Fields) -> str:
    """A prediction with a limit of latency, which also looks for a MIG profile that keeps it."""
    model = values.pop("model")
    prediction = predict(_source(model), **values)
    return _json({**prediction.to_dict(), "model": _name(model)})


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
    model = _graph(values.pop("model"), values)
    return _json({"points": [point.to_row() for point in sweep(model, **values)]})


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
    "predict": _predict_within, "fit": _fit, "share": _share, "sweep": _sweep, "advise": _advise,
    "report": _report,
}  # fmt: skip
