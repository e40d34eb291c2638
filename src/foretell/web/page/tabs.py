"""Web: what happens when a button of the page is pressed: questions to the queue, HTML and JSON back."""

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
    """The tabs of the page; an error is an answer, too."""

    def __init__(self, queue: RequestQueue) -> None:
        self._queue = queue

    async def predict(self, spec: str, held: str, devices: list[str], *rest: Any) -> tuple[str, str]:
        """One prediction in detail, and a sweep over the devices and the batch sizes."""
        return await self._told(lambda: self._predict(model_of(spec, held), devices, *rest))

    async def compare(self, spec: str, held: str, other: str, other_held: str, *rest: Any) -> tuple[str, str]:
        """Two models in the same place."""
        return await self._told(lambda: self._compare(model_of(spec, held), model_of(other, other_held), *rest))

    async def advise(self, spec: str, held: str, *rest: Any) -> tuple[str, str]:
        """Where to serve a model."""
        return await self._told(lambda: self._advise(model_of(spec, held), *rest))

    async def report(self, spec: str, held: str, devices: list[str], *rest: Any) -> tuple[str, str]:
        """The page of a report, as text, or an error to show."""

        async def make() -> tuple[str, str]:
            asked = placed(model_of(spec, held), devices[0] if devices else "h200", *rest)
            asked.pop("slice", None)  # a report is about whole devices
            return "", await self._ask("report", asked)

        problem, text = await self._told(make)
        return text, problem

    async def _told(self, make: Callable[[], Awaitable[tuple[str, str]]]) -> tuple[str, str]:
        try:
            return await make()
        except ForetellError as error:
            return show.show_problem(str(error)), ""
        except (TypeError, ValueError, LookupError, AttributeError):  # whoever speaks for the page may say anything
            return show.show_problem("The page sent something that is no question. Reload it and try again."), ""

    async def _ask(self, kind: str, values: Values) -> str:
        with self._queue.place():
            return await self._queue.ask(kind, read_question(kind, values))

    async def _predict(self, model: str, devices: list[str], *rest: Any) -> tuple[str, str]:
        if not 1 <= len(devices) <= MOST_DEVICES:
            raise InputError(f"Got {len(devices)} devices; choose between 1 and {MOST_DEVICES}.")
        asked = placed(model, devices[0], *rest)
        part = asked.get("slice")
        swept: Values = {name: asked[name] for name in ("model", "mode", "optimizer", "input_shape") if name in asked}
        swept |= {"devices": devices[:1] if part else devices, "dtypes": [asked["dtype"]]}
        swept |= {"batch_sizes": sorted({*BATCH_SIZES, asked["batch_size"]}), "slices": [part or "whole"]}
        told, rows = await asyncio.gather(self._ask("predict", asked), self._ask("sweep", swept))
        prediction, points = json.loads(told), json.loads(rows)
        text = json.dumps({"prediction": prediction, "sweep": points}, indent=1)
        return show.show_prediction(prediction, points), text

    async def _compare(self, model: str, other: str, device: str, *rest: Any) -> tuple[str, str]:
        found = json.loads(await self._ask("compare", {**placed(model, device, *rest), "other": other}))
        return show.show_comparison(found), json.dumps(found, indent=1)

    async def _advise(
        self, model: str, dtype: str, slo_ms: str, rate: str, budget: str,
        by: str, market: str, devices: list[str], mig: bool,
    ) -> tuple[str, str]:  # fmt: skip
        asked: Values = {"model": model, "dtype": dtype, "by": by, "market": market, "mig": mig}
        asked |= {name: value for name, value in (("slo_ms", slo_ms), ("rate", rate), ("budget", budget)) if value}
        found = json.loads(await self._ask("advise", {**asked, "devices": devices or ["all"]}))
        name = self._queue.uploads.find(model).path.name if model.startswith(UPLOAD) else model
        return show.show_advice(found, name), json.dumps(found, indent=1)


def model_of(spec: str, held: str) -> str:
    """The uploaded file where there is one, else what was typed."""
    model = (held or spec or "").strip()
    if not model:
        raise InputError("There is no model yet: type a spec such as timm:resnet50, or drop an ONNX file.")
    return model


def placed(
    model: str,
    device: str,
    batch_size: float | None,
    dtype: str,
    mode: str,
    inputs: str | None = None,
    part: str | None = None,
) -> Values:
    """A model in a place, as the fields of a question."""
    asked: Values = {"model": model, "device": device, "batch_size": batch_size or 1, "dtype": dtype, "mode": mode}
    if inputs and inputs.strip():
        asked["input_shape"] = inputs.split()
    if part and part.strip():
        asked["slice"] = part.strip()
    return asked
