"""Web: the body of a request → a question and its files: JSON, or a form in which models may be files."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.datastructures import UploadFile
from starlette.requests import Request

from foretell.errors import InputError
from foretell.units import KIB
from foretell.web.admission.middleware import LARGEST_ASIDE
from foretell.web.admission.uploads import Upload, Uploads
from foretell.web.questions import QUESTIONS, UPLOAD, Question, read_question
from foretell.web.refusals import TooLargeError, UnreadableError

_MOST_FIELDS = 200
_LARGEST_FIELD = 16 * KIB


@asynccontextmanager
async def asked(request: Request, kind: str, uploads: Uploads) -> AsyncIterator[tuple[Question, dict[str, Upload]]]:
    """The question of a request, with its files for as long as they are needed."""
    brought: dict[str, Upload] = {}
    try:
        if _type_of(request) == "multipart/form-data":
            values = await _read_form(request, kind, uploads, brought)
        else:
            values = await read_json(request)
        yield read_question(kind, values), brought
    finally:
        for upload in brought.values():
            upload.delete()


async def read_json(request: Request) -> dict[str, Any]:
    """The object that a body holds."""
    if _type_of(request) not in ("application/json", ""):
        raise UnreadableError(f"Got {_type_of(request)[:80]!r}; send application/json or multipart/form-data.")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST_ASIDE:
            raise TooLargeError("The JSON is too long; a file is sent as multipart/form-data.")
    try:
        values = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InputError("The body is not JSON.") from error
    if not isinstance(values, dict):
        raise InputError(f"Got JSON of the kind {type(values).__name__}; send an object.")
    return values


async def _read_form(request: Request, kind: str, uploads: Uploads, brought: dict[str, Upload]) -> dict[str, Any]:
    """The fields of a form; ``brought`` gets its files."""
    lists = {name for name, field in QUESTIONS[kind].model_fields.items() if str(field.annotation).startswith("list")}
    values: dict[str, Any] = {}
    async with request.form(max_files=2, max_fields=_MOST_FIELDS, max_part_size=_LARGEST_FIELD) as form:
        for name, value in form.multi_items():
            if isinstance(value, UploadFile):
                if name not in ("model", "other") or name in brought:
                    raise InputError(f"Got a file as {name[:80]!r}; the files are model and, to compare, other.")
                brought[name] = await uploads.take(value.file, value.filename or "")
                values[name] = UPLOAD + brought[name].ident
            elif name in lists:
                values.setdefault(name, []).extend(word for word in map(str.strip, value.split(",")) if word)
            elif name in values:
                raise InputError(f"The field {name[:80]!r} is given twice.")
            elif value:  # an empty field of a form is one that was left out
                values[name] = value
    return values


async def read_file(request: Request, uploads: Uploads) -> Upload:
    """The one file of a form."""
    if _type_of(request) != "multipart/form-data":
        raise UnreadableError("A file is sent as multipart/form-data, in the field file.")
    async with request.form(max_files=1, max_fields=1, max_part_size=_LARGEST_FIELD) as form:
        file = form.get("file")
        if not isinstance(file, UploadFile):
            raise InputError("The form has no file in its field file.")
        return await uploads.take(file.file, file.filename or "")


def _type_of(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()
