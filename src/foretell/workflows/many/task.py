"""Workflows: a task of a plan: some of its models, predicted in a worker process on this machine or on a cluster.

A worker answers with a table, as bytes of Arrow. It has a row for each model and each combination of options, whatever
happens: a model that cannot be predicted has a row that says why.
"""

import base64
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from foretell.errors import ForetellError, ModelError
from foretell.features.versions import FEATURES_VERSION
from foretell.frontends.torch.python_file import load_function
from foretell.optional import require
from foretell.processes.child import Message, die_with_parent, redirect_output, short
from foretell.records import METRICS, Prediction, flat_metrics
from foretell.workflows.many.predict_many import PART, predict_many

OK, ERROR = "ok", "error"
_TEXTS = ("model", "device", "slice", "runtime", "mode", "dtype")
_FACTS = ("parameters", "macs", "flops")
# the command of a worker on this machine; numpy reads the number of threads when it is imported
WORKER = (
    sys.executable, "-c",
    "import os; os.environ.update(OMP_NUM_THREADS='1', OPENBLAS_NUM_THREADS='1'); "
    "from foretell.workflows.many.task import main; main()",
)  # fmt: skip


@dataclass(frozen=True)
class Task:
    """The models ``first`` to ``last - 1`` of a plan; without ``names`` they are networks of a space."""

    shard: int
    first: int
    last: int
    names: tuple[str, ...]

    def name_of(self, number: int) -> str:
        """What a model is called."""
        return self.names[number - self.first] if self.names else f"network {number}"

    def halves(self) -> tuple["Task", "Task"]:
        """The same models in two tasks."""
        middle = (self.first + self.last) // 2
        cut = middle - self.first
        return (
            Task(self.shard, self.first, middle, self.names[:cut]),
            Task(self.shard, middle, self.last, self.names[cut:]),
        )


@dataclass(frozen=True)
class Settings:
    """What all tasks of a plan have in common; ``digest`` is that of the file of ``space``."""

    space: str
    digest: str
    combinations: tuple[Mapping[str, Any], ...]
    trust: bool
    features_version: int = FEATURES_VERSION


def message_of(task: Task, settings: Settings) -> Message:
    """A task as JSON."""
    return {"task": vars(task), "settings": vars(settings)}


def run_task(message: Message) -> bytes:
    """Predict the models of a task; the table as bytes of Arrow. This is what a worker does."""
    task = Task(**{**message["task"], "names": tuple(message["task"]["names"])})
    settings = Settings(**{**message["settings"], "combinations": tuple(message["settings"]["combinations"])})
    if settings.features_version != FEATURES_VERSION:
        raise ModelError(
            f"This machine has another foretell (features of version {FEATURES_VERSION}) than the one that asks "
            f"({settings.features_version}). Install the same version on all machines."
        )
    return to_bytes(rows_of(task, settings))


def rows_of(task: Task, settings: Settings) -> list[dict[str, Any]]:
    """All rows of a task, in the order of the models."""
    if not task.names:
        space_function(settings.space, settings.digest)  # a machine without this file is a mistake, not an error row
    rows: list[dict[str, Any]] = []
    for first in range(task.first, task.last, PART):
        rows += _rows(range(first, min(first + PART, task.last)), task, settings)
    return rows


def _rows(numbers: Sequence[int], task: Task, settings: Settings) -> Iterator[dict[str, Any]]:
    models = {number: _model(number, task, settings) for number in numbers}
    asked = [
        (number, model, options)
        for number, model in models.items()
        if not isinstance(model, ForetellError)
        for options in settings.combinations
    ]
    answers = iter(_answers([(model, options) for _, model, options in asked], settings.trust))
    for number, model in models.items():
        name = task.name_of(number)
        for options in settings.combinations:
            answer = model if isinstance(model, ForetellError) else next(answers)
            yield _row(number, name, options, answer)


def _model(number: int, task: Task, settings: Settings) -> Any:
    if task.names:
        return task.names[number - task.first]
    try:
        return space_function(settings.space, settings.digest)(number)
    except Exception as error:  # noqa: BLE001 the function is the user's: whatever it raises is the answer
        return ModelError(f"{Path(settings.space).name} raised {short(error)}")


@lru_cache(1)
def space_function(space: str, digest: str) -> Any:
    """The function of a space; its file runs."""
    path, _, function = space.rpartition(":")
    try:
        found = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise ModelError(f"This machine cannot read {path}: {error.strerror}. Put it where all machines see it.") from (
            error
        )
    if found != digest:
        raise ModelError(f"{path} is not the file that the plan was begun with. Begin again with another folder.")
    return load_function(Path(path), function)


def _answers(asked: list[tuple[Any, Mapping[str, Any]]], trust: bool) -> list[Prediction | ForetellError]:
    try:
        return list(predict_many(asked, trust=trust))
    except Exception:  # noqa: BLE001 one model must not take the others with it: each is asked alone
        return [_alone(one, trust) for one in asked]


def _alone(asked: tuple[Any, Mapping[str, Any]], trust: bool) -> Prediction | ForetellError:
    try:
        return next(predict_many([asked], trust=trust))
    except Exception as error:  # noqa: BLE001 a bug of ours, which is told in its place
        return ModelError(f"Internal error ({short(error)}). Report it with this model.")


def _row(number: int, name: str, options: Mapping[str, Any], answer: Prediction | ForetellError) -> dict[str, Any]:
    row: dict[str, Any] = {"number": number, "name": name}
    if isinstance(answer, ForetellError):
        asked = {key: options.get(key) for key in ("device", "slice", "runtime", "mode", "dtype", "batch_size")}
        return {**row, **asked, "status": ERROR, "error": " ".join(str(answer).split())}
    row |= {key: getattr(answer, key) for key in _TEXTS}
    row |= {"batch_size": answer.batch_size, "status": OK, **flat_metrics(answer)}
    row |= {key: answer.facts.get(key) for key in _FACTS}
    row |= {"fits": answer.fits, "capacity_mib": answer.capacity_mib, "coverage": answer.coverage}
    return row | {
        "extrapolated": answer.extrapolated, "predictor": answer.predictor, "warnings": "\n".join(answer.warnings),
    }  # fmt: skip


def crashed_rows(task: Task, settings: Settings, why: str) -> list[dict[str, Any]]:
    """The rows of a task that no worker survives."""
    error = ModelError(f"No worker could predict it: {why}.")
    return [
        _row(number, task.name_of(number), options, error)
        for number in range(task.first, task.last)
        for options in settings.combinations
    ]


def schema() -> Any:
    """The columns of a shard."""
    arrow = require("pyarrow", extra="data", purpose="Predictions in Parquet")
    fields = [("number", arrow.int64()), ("name", arrow.string())]
    fields += [(name, arrow.string()) for name in _TEXTS]
    fields += [("batch_size", arrow.int64()), ("status", arrow.string()), ("error", arrow.string())]
    fields += [(name + end, arrow.float64()) for name in METRICS for end in ("", "_low", "_high")]
    fields += [(name, arrow.float64()) for name in _FACTS]
    fields += [("fits", arrow.string()), ("capacity_mib", arrow.float64()), ("coverage", arrow.float64())]
    fields += [("extrapolated", arrow.bool_()), ("predictor", arrow.string()), ("warnings", arrow.string())]
    return arrow.schema(fields)


def to_bytes(rows: list[dict[str, Any]]) -> bytes:
    """Rows as a stream of Arrow."""
    arrow = require("pyarrow", extra="data", purpose="Predictions in Parquet")
    table = arrow.Table.from_pylist(rows, schema=schema())
    sink = arrow.BufferOutputStream()
    options = arrow.ipc.IpcWriteOptions(compression="zstd")
    with arrow.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def from_bytes(data: bytes) -> Any:
    """The table of a stream of Arrow."""
    arrow = require("pyarrow", extra="data", purpose="Predictions in Parquet")
    with arrow.ipc.open_stream(data) as reader:
        return reader.read_all()


def main() -> None:
    """A worker on this machine: a task a line on standard input, an answer a line on standard output."""
    die_with_parent()
    send = redirect_output()
    schema()  # imports pyarrow, or says which extra has it, before the first task
    send({"ready": True})
    for line in sys.stdin:
        try:
            send({"answer": base64.b64encode(run_task(json.loads(line))).decode()})
        except ForetellError as error:
            send({"refused": short(error)})
