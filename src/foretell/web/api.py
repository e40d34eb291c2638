"""Web: the application: the routes /api, /healthz and /metrics, and the page at the root."""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from importlib import metadata
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response

from foretell.devices import all_devices
from foretell.errors import ForetellError
from foretell.units import bytes_from_mib
from foretell.web.admission.cache import SharedCache, code_version
from foretell.web.admission.metrics import CONTENT_TYPE, Metrics
from foretell.web.admission.middleware import AdmissionMiddleware, problem, problem_headers
from foretell.web.admission.pool import Pool
from foretell.web.admission.queue import RequestQueue
from foretell.web.admission.uploads import KEPT_S, Uploads, sweep_forever
from foretell.web.forms import read_file, read_request
from foretell.web.page.routes import GradioRoutes
from foretell.web.questions import QUESTIONS, UPLOAD
from foretell.web.refusals import GoneError, full_disk, status_of
from foretell.web.schema import FILE_BODY, answer_of, body_of, problems
from foretell.web.settings import Settings

_JSON = "application/json"


def make_app(settings: Settings, *, page: bool = True) -> FastAPI:
    """The application; with ``page=False`` only the API."""
    settings.check()
    metrics = Metrics()
    shared = None if settings.cache_dir is None else SharedCache(settings.cache_dir, code_version())
    uploads = Uploads(bytes_from_mib(settings.max_upload_mib))
    # Workers run in an empty folder, so that no model name can match a file.
    empty = uploads.folder / "empty"
    empty.mkdir()
    pool = Pool(settings, empty)
    queue = RequestQueue(settings, pool, uploads, metrics, shared)
    metrics.watch("workers_busy", "Workers that read a model now.", lambda: float(pool.busy))
    metrics.watch("workers_restarted", "Workers that were replaced.", lambda: float(pool.restarts))
    metrics.watch("workers_died", "Workers that ended before they answered.", lambda: float(pool.deaths))
    metrics.watch("questions_joined", "Questions that were answered with another one.", lambda: float(pool.joined))
    metrics.watch("requests_inside", "Requests that wait for an answer.", lambda: float(queue.places.taken))
    metrics.watch("wait_seconds", "How long a new question would wait for a worker.", lambda: pool.wait_s)

    @asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        pool.start()
        sweeping = asyncio.get_running_loop().create_task(sweep_forever(uploads))
        try:
            yield
        finally:
            sweeping.cancel()
            with suppress(asyncio.CancelledError):
                await sweeping
            await pool.stop()
            uploads.close()

    app = FastAPI(
        title="foretell",
        description="Predicts how a deep-learning model will run before you run it.",
        version=metadata.version("foretell"),
        docs_url=None,  # FastAPI's pages of documentation load scripts from another host
        redoc_url=None,
        lifespan=running,
    )
    app.state.queue, app.state.pool = queue, pool
    _handle_errors(app)
    _add_routes(app, queue, pool, metrics)
    if page:
        from foretell.web.page.page import add_page

        add_page(app, queue, settings)
        app.add_middleware(GradioRoutes)
    # Added last, so it runs first: what is added later wraps what was added before.
    app.add_middleware(AdmissionMiddleware, settings=settings, metrics=metrics)
    return app


def _handle_errors(app: FastAPI) -> None:
    @app.exception_handler(ForetellError)
    async def foretell_error(_: Request, error: ForetellError) -> Response:
        return Response(problem(str(error)), status_of(error), problem_headers(error))

    @app.exception_handler(ClientDisconnect)
    async def gone(_: Request, __: ClientDisconnect) -> Response:
        return Response(status_code=GoneError.status)  # nobody reads it, but the log stays free of tracebacks

    @app.exception_handler(OSError)
    async def system_error(_: Request, error: OSError) -> Response:
        refusal = full_disk(error)
        if refusal is None:
            raise error
        return Response(problem(str(refusal)), refusal.status, problem_headers(refusal))

    @app.exception_handler(HTTPException)
    async def http_error(_: Request, error: HTTPException) -> Response:
        return Response(problem(str(error.detail)), error.status_code, error.headers, _JSON)

    @app.exception_handler(RequestValidationError)
    async def invalid_request(_: Request, error: RequestValidationError) -> Response:
        return Response(problem("; ".join(str(detail["msg"]) for detail in error.errors())), 422, None, _JSON)


def _add_routes(app: FastAPI, queue: RequestQueue, pool: Pool, metrics: Metrics) -> None:
    @app.get("/healthz", summary="Whether the server is running")
    async def healthz() -> dict[str, Any]:
        return {"status": "ok", "version": app.version, "workers": len(pool.pids)}

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics_page() -> Response:
        """Metrics for Prometheus."""
        return Response(metrics.page(), media_type=CONTENT_TYPE)

    # Made once: it does not change while the server runs.
    catalogue = json.dumps([{k: v for k, v in asdict(device).items() if v is not None} for device in all_devices()])

    @app.get("/api/devices", responses={200: {"content": {_JSON: {"schema": {"type": "array"}}}}, **problems(401)})
    async def devices() -> Response:
        """The catalogue of devices: the list that foretell devices --json has in `devices`."""
        return Response(catalogue, media_type=_JSON)

    @app.post("/api/uploads", status_code=201, openapi_extra=FILE_BODY, responses=problems())
    async def upload(request: Request) -> dict[str, Any]:
        """Upload a model. For some minutes it can be used as upload:ID."""
        with queue.admit():
            stored = await read_file(request, queue.uploads)
            queue.uploads.keep(stored)
        return {"model": UPLOAD + stored.ident, "name": stored.name, "bytes": stored.size_bytes, "kept_s": KEPT_S}

    @app.delete("/api/uploads/{ident}", status_code=204, responses=problems(401))
    async def forget(ident: str) -> None:
        """Delete an uploaded model; it is no error if there is none."""
        queue.uploads.drop(ident)

    for kind in QUESTIONS:
        _add_question(app, queue, kind)


def _add_question(app: FastAPI, queue: RequestQueue, kind: str) -> None:
    async def ask(request: Request) -> Response:
        with queue.admit():
            async with read_request(request, kind, queue.uploads) as (question, uploaded):
                text = await _unless_gone(request, queue.ask(kind, question, uploaded))
        return HTMLResponse(text) if kind == "report" else Response(text, media_type=_JSON)

    app.post(
        f"/api/{kind}",
        name=kind,
        summary=(QUESTIONS[kind].__doc__ or kind).strip(),
        openapi_extra=body_of(kind),
        responses=answer_of(kind),
    )(ask)


async def _unless_gone(request: Request, answering: Coroutine[Any, Any, str]) -> str:
    """The answer; given up when the client leaves, so that nobody works for those who do not wait."""
    work, leaving = asyncio.ensure_future(answering), asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait([work, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise GoneError("The client left before its answer came.")
        return work.result()
    finally:
        for task in (work, leaving):
            task.cancel()
        await asyncio.gather(work, leaving, return_exceptions=True)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
