"""Web: the OpenAPI schemas of questions and answers."""

from typing import Any

from foretell.web.questions import QUESTIONS

Schema = dict[str, Any]

_OBJECTS: Schema = {"type": "array", "items": {"type": "object"}}
ANSWERS: dict[str, Schema] = {
    "predict": {"type": "object", "required": ["model", "device", "batch_size", "dtype", "predictor", "warnings"]},
    "compare": {"type": "object", "required": ["models", "times"], "properties": {"models": _OBJECTS}},
    "share": {"type": "object", "required": ["device", "method", "fits", "jobs"], "properties": {"jobs": _OBJECTS}},
    "sweep": {"type": "object", "required": ["points"], "properties": {"points": _OBJECTS}},
    "fit": {"type": "object", "required": ["model", "device", "fits", "capacity_mib", "warnings"]},
    "llm": {"type": "object", "required": ["model", "device", "fits", "gpus", "max_concurrency", "warnings"]},
    "advise": {"type": "object", "required": ["choices", "refused"], "properties": {"choices": _OBJECTS}},
    "advise-llm": {"type": "object", "required": ["model", "choices", "refused"], "properties": {"choices": _OBJECTS}},
}
PROBLEM: Schema = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
_STATUSES = {
    400: "The body cannot be read.",
    401: "The token is missing.",
    403: "A page of another site sent the request.",
    408: "The body took too long to arrive.",
    413: "The upload is too large.",
    415: "The body is neither JSON nor a form.",
    421: "The Host header names another server.",
    422: "The question has no answer; the error says why.",
    429: "The client takes more than its share; Retry-After says when to try again.",
    503: "Too many requests are waiting, or there is no space; Retry-After says when to try again.",
    504: "The answer takes too long.",
}


def problems(*statuses: int) -> dict[int | str, Schema]:
    """The errors that a route may return."""
    content = {"application/json": {"schema": PROBLEM}}
    return {status: {"description": _STATUSES[status], "content": content} for status in statuses or _STATUSES}


def body_of(kind: str) -> Schema:
    """The body of a question: JSON, or a form in which a model may be a file."""
    schema = QUESTIONS[kind].model_json_schema()
    file = {"type": "string", "format": "binary", "description": "A spec, or a file: .onnx or .pt2"}
    form = {**schema, "properties": {**schema["properties"]}}
    for name in ("model", "other"):
        if name in form["properties"]:
            form["properties"][name] = file
    content = {"application/json": {"schema": schema}, "multipart/form-data": {"schema": form}}
    return {"requestBody": {"required": True, "content": content}}


def answer_of(kind: str) -> dict[int | str, Schema]:
    """The responses to a question."""
    if kind == "report":
        content: Schema = {"text/html": {"schema": {"type": "string"}}}
    else:
        content = {"application/json": {"schema": ANSWERS[kind]}}
    return {200: {"description": f"The answer of foretell {kind}.", "content": content}, **problems()}


FILE_BODY: Schema = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {"file": {"type": "string", "format": "binary"}},
                }
            }
        },
    }
}
