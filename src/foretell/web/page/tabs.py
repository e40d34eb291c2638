"""Web: what the buttons of the page do: send questions to the queue, return HTML and JSON."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from foretell.errors import ForetellError, InputError
from foretell.web.admission.queue import RequestQueue
from foretell.web.page import cards as show
from foretell.web.questions import UPLOAD, read_question

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
MOST_DEVICES = 8

Values = dict[str, Any]


class Tabs:
    """The handlers of the tabs. Errors are returned as HTML to show, never raised."""

    def __init__(self, queue: RequestQueue) -> None:
        self._queue = queue

    async def predict(self, spec: str, upload: str, devices: list[str], *rest: Any) -> tuple[str, str]:
        """One prediction in detail, and a sweep over the devices and the batch sizes."""
        return await self._catch_errors(lambda: self._predict(model_of(spec, upload), devices, *rest))

    async def compare(self, spec: str, upload: str, other: str, other_upload: str, *rest: Any) -> tuple[str, str]:
        """Two models on the same device."""
        return await self._catch_errors(
            lambda: self._compare(model_of(spec, upload), model_of(other, other_upload), *rest)
        )

    async def share(self, spec: str, upload: str, other: str, other_upload: str, *rest: Any) -> tuple[str, str]:
        """Two models on one GPU at the same time."""
        return await self._catch_errors(
            lambda: self._share(model_of(spec, upload), model_of(other, other_upload), *rest)
        )

    async def serve(self, model: str, *rest: Any) -> tuple[str, str]:
        """A language model as engines serve it."""
        return await self._catch_errors(lambda: self._serve(model, *rest))

    async def place(self, model: str, *rest: Any) -> tuple[str, str]:
        """Where to serve a language model."""
        return await self._catch_errors(lambda: self._place(model, *rest))

    async def advise(self, spec: str, upload: str, *rest: Any) -> tuple[str, str]:
        """Where to serve a model."""
        return await self._catch_errors(lambda: self._advise(model_of(spec, upload), *rest))

    async def report(self, spec: str, upload: str, devices: list[str], *rest: Any) -> tuple[str, str]:
        """The page of a report, as text, or an error to show."""

        async def make() -> tuple[str, str]:
            fields = question_fields(model_of(spec, upload), devices[0] if devices else "h200", *rest)
            fields.pop("slice", None)  # reports do not support slices
            return "", await self._ask("report", fields)

        problem, text = await self._catch_errors(make)
        return text, problem

    async def _catch_errors(self, make: Callable[[], Awaitable[tuple[str, str]]]) -> tuple[str, str]:
        try:
            return await make()
        except ForetellError as error:
            return show.show_problem(str(error)), ""
        except (TypeError, ValueError, LookupError, AttributeError):  # a client may send anything, not just the fields
            return show.show_problem("The page sent an invalid request. Reload it and try again."), ""

    async def _ask(self, kind: str, values: Values) -> str:
        with self._queue.admit():
            return await self._queue.ask(kind, read_question(kind, values))

    async def _predict(self, model: str, devices: list[str], *rest: Any) -> tuple[str, str]:
        if not 1 <= len(devices) <= MOST_DEVICES:
            raise InputError(f"Got {len(devices)} devices; choose between 1 and {MOST_DEVICES}.")
        fields = question_fields(model, devices[0], *rest)
        part = fields.get("slice")
        sweep_fields: Values = {
            name: fields[name] for name in ("model", "mode", "optimizer", "input_shape") if name in fields
        }
        sweep_fields |= {"devices": devices[:1] if part else devices, "dtypes": [fields["dtype"]]}
        sweep_fields |= {"batch_sizes": sorted({*BATCH_SIZES, fields["batch_size"]}), "slices": [part or "whole"]}
        # Two workers can answer at the same time.
        prediction_text, sweep_text = await asyncio.gather(
            self._ask("predict", fields), self._ask("sweep", sweep_fields)
        )
        prediction, points = json.loads(prediction_text), json.loads(sweep_text)["points"]
        text = json.dumps({"prediction": prediction, "sweep": points}, indent=1)
        return show.show_prediction(prediction, points), text

    async def _compare(self, model: str, other: str, device: str, *rest: Any) -> tuple[str, str]:
        comparison = json.loads(await self._ask("compare", {**question_fields(model, device, *rest), "other": other}))
        return show.show_comparison(comparison), json.dumps(comparison, indent=1)

    async def _share(
        self, model: str, other: str, device: str, batch_size: float, dtype: str, mode: str, method: str
    ) -> tuple[str, str]:
        fields = question_fields(model, device, batch_size, dtype, mode)
        sharing = json.loads(await self._ask("share", {**fields, "other": other, "method": method}))
        return show.show_sharing(sharing), json.dumps(sharing, indent=1)

    async def _serve(
        self, model: str, device: str, input_tokens: float, output_tokens: float, concurrency: float,
        gpus: str, weights: str, engine: str,
    ) -> tuple[str, str]:  # fmt: skip
        fields: Values = {"model": (model or "").strip(), "device": device, "engine": engine}
        fields |= {"input_tokens": input_tokens, "output_tokens": output_tokens, "concurrency": concurrency}
        fields |= {name: value for name, value in (("gpus", gpus), ("weights", weights)) if value}
        answer = json.loads(await self._ask("llm", fields))
        return show.show_serving(answer), json.dumps(answer, indent=1)

    async def _place(
        self, model: str, input_tokens: float, output_tokens: float, engine: str, ttft_ms: str, tpot_ms: str, rate: str
    ) -> tuple[str, str]:
        fields: Values = {"model": (model or "").strip(), "engine": engine}
        fields |= {"input_tokens": input_tokens, "output_tokens": output_tokens}
        limits = (("ttft_ms", ttft_ms), ("tpot_ms", tpot_ms), ("rate", rate))
        advice = json.loads(await self._ask("advise-llm", fields | {name: value for name, value in limits if value}))
        return show.show_places(advice), json.dumps(advice, indent=1)

    async def _advise(
        self, model: str, dtype: str, slo_ms: str, rate: str, budget: str,
        by: str, market: str, devices: list[str], mig: bool, shared: bool = False,
    ) -> tuple[str, str]:  # fmt: skip
        fields: Values = {"model": model, "dtype": dtype, "by": by, "market": market, "mig": mig, "shared": shared}
        fields |= {name: value for name, value in (("slo_ms", slo_ms), ("rate", rate), ("budget", budget)) if value}
        advice = json.loads(await self._ask("advise", {**fields, "devices": devices or ["all"]}))
        name = self._queue.uploads.find(model).name if model.startswith(UPLOAD) else model
        return show.show_advice(advice, name), json.dumps(advice, indent=1)


def model_of(spec: str, upload: str) -> str:
    """The uploaded file or the name that was typed. The page keeps only the later of both; a client may send two."""
    if (upload or "").strip() and (spec or "").strip():
        raise InputError(f"There are two models: the name {spec.strip()[:80]!r} and a file. Remove one of them.")
    model = (upload or spec or "").strip()
    if not model:
        raise InputError("There is no model yet: type a spec such as timm:resnet50, or drop an ONNX file.")
    return model


def question_fields(
    model: str,
    device: str,
    batch_size: float | None,
    dtype: str,
    mode: str,
    inputs: str | None = None,
    part: str | None = None,
) -> Values:
    """The fields of a question: a model on a device."""
    fields: Values = {"model": model, "device": device, "batch_size": batch_size or 1, "dtype": dtype, "mode": mode}
    if inputs and inputs.strip():
        fields["input_shape"] = inputs.split()
    if part and part.strip():
        fields["slice"] = part.strip()
    return fields
