"""Web: read the body of a request into a question and its files: JSON, or a form in which models may be files."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request

from foretell.errors import InputError
from foretell.units import KIB
from foretell.web.admission.middleware import MAX_SMALL_BODY_BYTES
from foretell.web.admission.uploads import Upload, Uploads
from foretell.web.questions import QUESTIONS, UPLOAD, AnyQuestion, read_question
from foretell.web.refusals import TooLargeError, UnreadableError, full_disk

_MAX_FIELDS = 200
_MAX_FIELD_BYTES = 16 * KIB


@asynccontextmanager
async def read_request(
    request: Request, kind: str, uploads: Uploads
) -> AsyncIterator[tuple[AnyQuestion, dict[str, Upload]]]:
    """Read a request into its question and its files. The files are deleted when the context ends."""
    uploaded: dict[str, Upload] = {}
    try:
        if _content_type(request) == "multipart/form-data":
            values = await _read_form(request, kind, uploads, uploaded)
        else:
            values = await read_json(request)
        yield read_question(kind, values), uploaded
    finally:
        for upload in uploaded.values():
            upload.delete()


async def read_json(request: Request) -> dict[str, Any]:
    """Read the JSON object in the body of a request."""
    if _content_type(request) not in ("application/json", ""):
        raise UnreadableError(f"Got {_content_type(request)[:80]!r}; send application/json or multipart/form-data.")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_SMALL_BODY_BYTES:
            raise TooLargeError("The JSON is too long. Send files as multipart/form-data.")
    try:
        values = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InputError("The body is not JSON.") from error
    if not isinstance(values, dict):
        raise InputError(f"Got JSON of the kind {type(values).__name__}; send an object.")
    return values


async def _read_form(request: Request, kind: str, uploads: Uploads, uploaded: dict[str, Upload]) -> dict[str, Any]:
    """Read the fields of a form; its files are added to ``uploaded``, which the caller deletes even on errors."""
    list_fields = _list_fields(kind)
    values: dict[str, Any] = {}
    async with _form(request, max_files=2, max_fields=_MAX_FIELDS) as form:
        for name, value in form.multi_items():
            if isinstance(value, UploadFile):
                if name not in ("model", "other") or name in uploaded:
                    raise InputError(
                        f"Got a file as {name[:80]!r}; files go into the field model and, for two models, other."
                    )
                uploaded[name] = await uploads.take(value.file, value.filename or "")
                values[name] = UPLOAD + uploaded[name].ident
            elif name in list_fields:
                values.setdefault(name, []).extend(word for word in map(str.strip, value.split(",")) if word)
            elif name in values:
                raise InputError(f"The field {name[:80]!r} is given twice.")
            elif value:  # browsers also send the fields that were left empty
                values[name] = value
    return values


@cache
def _list_fields(kind: str) -> frozenset[str]:
    """The fields of a question that are lists."""
    fields = QUESTIONS[kind].model_fields
    return frozenset(name for name, field in fields.items() if str(field.annotation).startswith("list"))


async def read_file(request: Request, uploads: Uploads) -> Upload:
    """Read the one file of a form."""
    if _content_type(request) != "multipart/form-data":
        raise UnreadableError("Send the file as multipart/form-data, in the field file.")
    async with _form(request, max_files=1, max_fields=1) as form:
        file = form.get("file")
        if not isinstance(file, UploadFile):
            raise InputError("The form has no file in its field file.")
        return await uploads.take(file.file, file.filename or "")


@asynccontextmanager
async def _form(request: Request, *, max_files: int, max_fields: int) -> AsyncIterator[FormData]:
    """The form of a request. Starlette stores large files while they arrive, for which the disk may have no space."""
    try:
        form = await request.form(max_files=max_files, max_fields=max_fields, max_part_size=_MAX_FIELD_BYTES)
    except OSError as error:
        raise full_disk(error) or error from error
    try:
        yield form
    finally:
        await form.close()


def _content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()
